"""DAQUAR, VQA-RAD and easy-VQA as they are distributed: small files in their form, read, split, trained on."""

import json

import numpy
import pytest
from PIL import Image

from regard._problem import Problem
from regard.vqa.named_objects import named_classes
from regard.vqa.own import NoSplit
from regard.vqa.question_sets import Daquar, EasyVqa, VqaRad, question_set_in
from regard.vqa.read import read_questions, splits_in
from regard.vqa.records import Record, Skipped
from regard.vqa.regions import Regions


def draw(path, colour=(9, 9, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path)


TRAIN = "what is on the desk in the image3 ?\nlamp\nhow many chairs are there in image4 ?\n3\nwhat is it ?\nnothing\n"
TEST = "what is on the left side of the bed in image5?\nknife, fork\nwhat is in the image99 ?\ndoor\n"


@pytest.fixture
def daquar(tmp_path):
    (tmp_path / "qa.894.raw.train.txt").write_text(TRAIN)
    (tmp_path / "qa.894.raw.test.txt").write_text(TEST)
    (tmp_path / "qa.37.raw.train.txt").write_text("what is small in image3 ?\ncup\n")
    for number in (3, 4, 5):
        draw(tmp_path / "nyu_depth_images" / f"image{number}.png")
    return tmp_path


def test_daquar(daquar):
    assert isinstance(question_set_in(daquar), Daquar)
    assert splits_in(daquar) == {"train": True, "test": True}
    train, test = (read_questions(daquar, split) for split in ("train", "test"))
    first, second = train.records
    assert (first.picture, first.question, set(first.answers), len(first.answers)) == (
        "image3",
        "what is on the desk?",
        {"lamp"},
        10,
    )
    assert (second.picture, second.question, second.answer_type) == ("image4", "how many chairs are there?", "number")
    assert "names no picture" in str(train.skipped)
    assert [r.answers[0] for r in test.records] == ["knife, fork"]  # several are one
    assert "no picture image99" in str(test.skipped)
    assert {r.id for r in train.records}.isdisjoint(r.id for r in test.records)
    with pytest.raises(NoSplit, match=r"no split val\. Splits that it has: train, test"):
        read_questions(daquar, "val")


def test_daquar_as_one_file_with_lists_of_pictures(tmp_path):
    (tmp_path / "all_qa_pairs.txt").write_text(TRAIN + TEST)
    (tmp_path / "train_images_list.txt").write_text("image3\nimage4\n")
    assert splits_in(tmp_path) == {"train": True}
    (tmp_path / "test_images_list.txt").write_text("image5\n")
    for number in (3, 4, 5):
        draw(tmp_path / "images" / f"image{number}.png")
    assert [r.picture for r in read_questions(tmp_path, "train").records] == ["image3", "image4"]
    assert [r.picture for r in read_questions(tmp_path, "test").records] == ["image5"]


def test_daquar_with_masks(daquar, tmp_path):
    draw(tmp_path / "masks" / "image3.png", (255, 255, 255))
    records = read_questions(daquar, "train", daquar / "nyu_depth_images", tmp_path / "masks")
    assert [r.regions for r in records.records] == [("image3",), None]
    assert "no image4.png" in str(records.skipped)


def rad(name, phrase="freeform", **changes):
    entry = {"qid": 1, "image_name": f"{name}.jpg", "question": f"is {name} normal? ", "answer": "Yes"}
    return entry | {"answer_type": "CLOSED ", "question_type": "ABN", "phrase_type": phrase} | changes


@pytest.mark.parametrize("form", ["two files", "one file"])
def test_vqa_rad(tmp_path, form):
    train, test = [rad("synpic1"), {"question": "broken"}], [rad("synpic2", "test_para", answer=2, answer_type="OPEN")]
    if form == "two files":
        (tmp_path / "trainset.json").write_text(json.dumps(train))
        (tmp_path / "testset.json").write_text(json.dumps(test))
    else:
        (tmp_path / "VQA_RAD Dataset Public.json").write_text(json.dumps(train + test))
    for name in ("synpic1", "synpic2"):
        draw(tmp_path / "images" / f"{name}.jpg")
    assert isinstance(question_set_in(tmp_path), VqaRad)
    assert splits_in(tmp_path) == {"train": True, "test": True}
    records = read_questions(tmp_path, "train")
    (record,) = records.records
    assert (record.picture, record.question, record.answers[0]) == ("synpic1", "is synpic1 normal?", "Yes")
    assert (record.answer_type, record.question_type, record.lenient) == ("closed", "abn", True)
    assert "not whole" in str(records.skipped)
    (record,) = read_questions(tmp_path, "test").records
    assert (record.picture, record.answers[0], record.answer_type) == ("synpic2", "2", "open")


@pytest.mark.parametrize("below", ["", "data"])
def test_easy_vqa(tmp_path, below):
    place = tmp_path / below
    for split, colour in (("train", "red"), ("test", "blue")):
        draw(place / split / "images" / "0.png")
        entries = [[f"what color is the {split} shape?", colour, 0], ["is there a circle?", "no", 0], ["broken"]]
        (place / split / "questions.json").write_text(json.dumps(entries))
    assert isinstance(question_set_in(tmp_path), EasyVqa)
    records = {split: read_questions(tmp_path, split) for split in splits_in(tmp_path)}
    assert list(records) == ["train", "test"]
    for split, colour in (("train", "red"), ("test", "blue")):
        first, second = records[split].records
        assert (first.picture, first.answers[0]) == (f"{split}/0", colour)  # both have a picture 0
        assert records[split].pictures[f"{split}/0"] == place / split / "images" / "0.png"
        assert second.answer_type == "yes/no"
        assert "not whole" in str(records[split].skipped)


def test_other_folders_are_none_of_these(tmp_path):
    (tmp_path / "gradient.json").write_text("{}")
    (tmp_path / "trainset.json").write_text("no JSON")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "questions.json").write_text('{"questions": []}')
    assert question_set_in(tmp_path) is None
    assert splits_in(tmp_path) == {}
    with pytest.raises(Problem, match="no file"):
        read_questions(tmp_path)


def test_vqa_v2_is_read_as_before_even_if_such_a_file_lies_beside_it(tmp_path):
    (tmp_path / "v2_OpenEnded_mscoco_train_questions.json").write_text('{"questions": [], "data_subtype": "train"}')
    (tmp_path / "qa.894.raw.train.txt").write_text(TRAIN)
    assert splits_in(tmp_path) == {"train": False}
    assert len(read_questions(tmp_path, "train")) == 0


def test_a_broken_file_is_a_problem(tmp_path):
    (tmp_path / "trainset.json").write_text(json.dumps([rad("a")]))
    (tmp_path / "testset.json").write_text("[")
    with pytest.raises(Problem, match=r"testset.json cannot be read as JSON"):
        read_questions(tmp_path, "test")


@pytest.mark.parametrize(("text", "classes"), [
    ("what is on the table?", (10,)),
    ("how many beds are below the window?", (1, 13)),
    ("what is on the table next to the coffee table lamp?", (10,)),  # the first of them
    ("what is the largest object in the picture?", ()),
    ("what is below the picture?", (8,)),
    ("what is on the left side of the picture?", ()),
    ("what colour is the window screen on the bunk bed?", ()),
    ("night_stand, television", (11,)),
    ("is it a book?", ()),
])  # fmt: skip
def test_classes_that_a_text_names(text, classes):
    assert named_classes(text) == classes


def test_daquar_with_the_masks_of_thirteen_classes(daquar, tmp_path):
    """The object that a question names is where it is in the picture, which is the frame without its border."""
    numbers = numpy.zeros((480, 640), dtype=numpy.uint8)
    numbers[45 : 45 + 425, 41 : 41 + 140] = 1  # a bed in the left quarter of the picture
    (tmp_path / "nyu").mkdir()
    Image.fromarray(numbers).save(tmp_path / "nyu" / "new_nyu_class13_0005.png")
    Image.fromarray(255 - numbers[:9, :9]).save(tmp_path / "nyu" / "new_nyu_class13_eigen_0005.png")
    Image.new("RGB", (560, 425)).save(daquar / "nyu_depth_images" / "image5.png")
    records = read_questions(daquar, "test", regions=tmp_path / "nyu")
    assert [record.regions for record in records.records] == [(1,)]
    regions = Regions(records.records, records.objects, records.masks, records.skipped, records.shown)
    (mask,) = regions(records.records)
    assert mask[:, :56].all()
    assert not mask[:, 56:].any()
    train = read_questions(daquar, "train", regions=tmp_path / "nyu")  # its pictures have no masks
    assert [record.regions for record in train.records] == [None, None]
    assert str(train.skipped).count("image3: no mask") == 1
    # A picture of the whole frame shows all of the mask.
    Image.new("RGB", (640, 480)).save(daquar / "nyu_depth_images" / "image5.png")
    assert read_questions(daquar, "test", regions=tmp_path / "nyu").shown is None


def test_a_mask_smaller_than_what_is_shown_is_named(tmp_path):
    Image.new("L", (4, 4), 1).save(tmp_path / "a.png")
    skipped = Skipped()
    record = Record(1, "a", "bed?", regions=(1,))
    regions = Regions([record], {"a": tmp_path / "a.png"}, {}, skipped, (1, 1, 4, 4))
    assert not regions([record]).any()
    assert "smaller than what its picture shows" in str(skipped)
