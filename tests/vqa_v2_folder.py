"""A small folder with the names, years and splits of VQA-v2: train2014, val2014 and, without annotations, test2015."""

import json

from PIL import Image

from regard.backbones import make_backbone
from regard.scenes import Scenes
from regard.vqa.features import make_features
from regard.vqa.read import read_questions

SUBTYPES = {"train": "train2014", "val": "val2014", "test": "test2015"}


def write_vqa_v2(folder, train=12, val=6, test=6, size=32):
    """Drawn scenes as photographs of VQA-v2: JPEG files, ten answers to each question, none in the test splits."""
    for split, count in (("train", train), ("val", val), ("test", test)):
        subtype, scenes = SUBTYPES[split], Scenes(split, count, size=size)
        (folder / subtype).mkdir(parents=True)
        for number in range(count):
            pixels = scenes.picture(number).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / subtype / f"COCO_{subtype}_{number:012d}.jpg")
        questions = [{"image_id": q.picture, "question": q.text, "question_id": q.id} for q in scenes.questions]
        _write(folder / f"v2_OpenEnded_mscoco_{subtype}_questions.json", subtype, questions=questions)
        if split == "test":
            some = questions[: len(questions) // 2]
            _write(folder / "v2_OpenEnded_mscoco_test-dev2015_questions.json", "test-dev2015", questions=some)
        else:
            annotations = [
                {
                    "question_id": q.id,
                    "image_id": q.picture,
                    "question_type": q.family,
                    "answer_type": q.answer_type,
                    "multiple_choice_answer": q.answer,
                    "answers": [{"answer": q.answer, "answer_confidence": "yes", "answer_id": i} for i in range(1, 11)],
                }
                for q in scenes.questions
            ]
            _write(folder / f"v2_mscoco_{subtype}_annotations.json", subtype, annotations=annotations)
    return folder


def _write(path, subtype, **lists):
    path.write_text(json.dumps({"data_subtype": subtype} | lists))


def store_features(data, out, splits):
    """The features of some splits, 8 x 8 x 16, by a small untrained backbone."""
    pictures = {}
    for split in splits:
        pictures |= read_questions(data, split).pictures
    backbone = make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2)
    backbone.save_pretrained(out / "backbone")
    return make_features(out, pictures, backbone, name=str(out / "backbone"))[0]
