"""Reading questions: VQA-v2, JSONL, CSV, vocabularies, word vectors; and what is said about bad records."""

import json

import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.scenes import Scenes, write_scenes
from regard.vqa.own import NoSplit
from regard.vqa.read import check_answers, read_questions, splits_in, write_results
from regard.vqa.records import Answers, Record, Records, check_vocabulary
from regard.vqa.words import Words, read_glove, tokens


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def vqa(folder, questions, annotations=None, subtype="train2014"):
    head = {"data_subtype": subtype}
    (folder / f"v2_OpenEnded_mscoco_{subtype}_questions.json").write_text(json.dumps(head | {"questions": questions}))
    if annotations is not None:
        path = folder / f"v2_mscoco_{subtype}_annotations.json"
        path.write_text(json.dumps(head | {"annotations": annotations}))


def test_scenes_are_read_as_vqa_v2(tmp_path):
    scenes = Scenes("val", 5)
    write_scenes(scenes, tmp_path)
    read = read_questions(tmp_path, "val")
    assert [(r.id, r.question, r.answers[0], r.question_type) for r in read.records] == [
        (q.id, q.text, q.answer, q.family) for q in scenes.questions
    ]
    assert [r.regions for r in read.records] == [q.regions for q in scenes.questions]
    assert len(read.pictures) == len(read.objects) == 5
    assert not read.skipped


def test_vqa_v2_names_what_is_missing(tmp_path):
    picture(tmp_path / "train2014" / "COCO_train2014_000000000009.jpg")
    questions = [
        {"image_id": 9, "question": "What?", "question_id": 90},
        {"image_id": 8, "question": "What?", "question_id": 80},
        {"image_id": 9, "question": "Why?", "question_id": 91},
        {"question": "Whose?", "question_id": 92},
    ]
    answers = [{"answer": "red", "answer_id": i, "answer_confidence": "yes"} for i in range(1, 11)]
    annotations = [
        {"question_id": 90, "image_id": 9, "question_type": "what", "answer_type": "other", "answers": answers},
        {"question_id": 80, "image_id": 8, "question_type": "what", "answer_type": "other", "answers": answers},
        {"question_id": 77, "image_id": 9, "question_type": "what", "answer_type": "other", "answers": answers},
    ]
    vqa(tmp_path, questions, annotations)
    read = read_questions(tmp_path, "train")
    assert read.records == [Record(90, "COCO_train2014_000000000009", "What?", ("red",) * 10, "other", "what")]
    said = str(read.skipped)
    assert "question 80 of train: no picture COCO_train2014_000000000008" in said
    assert "annotation of question 77" in said
    assert "question 91 of train has none" in said
    assert '"Whose?"' in said
    assert said.count("Skipped: 1") == 4


def test_test_splits_have_no_annotations(tmp_path):
    picture(tmp_path / "test2015" / "COCO_test2015_000000000001.jpg")
    vqa(tmp_path, [{"image_id": 1, "question": "Q", "question_id": 10}], subtype="test-dev2015")
    read = read_questions(tmp_path, "test-dev")
    assert [r.picture for r in read.records] == ["COCO_test2015_000000000001"]
    assert read.records[0].answers == ()


def test_the_splits_of_a_folder_and_which_have_answers(tmp_path):
    picture(tmp_path / "test2015" / "COCO_test2015_000000000001.jpg")
    asked = [{"image_id": 1, "question": "Q", "question_id": 10}]
    for subtype, annotations in (("train2014", []), ("val2014", []), ("test2015", None), ("test-dev2015", None)):
        vqa(tmp_path, asked, annotations, subtype)
    write_scenes(Scenes("pairs", 1, size=32), tmp_path)
    assert splits_in(tmp_path) == {"pairs": True, "test-dev": False, "test": False, "train": True, "val": True}
    with pytest.raises(NoSplit, match="Splits that it has: pairs, test-dev, test, train, val"):
        read_questions(tmp_path, "training")
    with pytest.raises(Problem, match=r"test of .* has no answers, .* Splits with answers: pairs, train, val\."):
        check_answers(read_questions(tmp_path, "test"), tmp_path, "a comparison")


def test_jsonl_and_csv(tmp_path):
    picture(tmp_path / "pictures" / "a.png")
    lines = [
        {"picture": "pictures/a.png", "question": "Which?", "answer": "this"},
        {"picture": "pictures/a.png", "question": "How many?", "answers": ["1", "2"], "id": "x"},
        {"picture": "pictures/b.png", "question": "Gone?", "answer": "yes"},
        {"question": "Of what?"},
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    read = read_questions(tmp_path / "own.jsonl")
    assert [(r.id, r.answers) for r in read.records] == [(1, ("this",) * 10), ("x", ("1", "2"))]
    assert "own.jsonl, line 3: no picture" in str(read.skipped)
    assert "own.jsonl, line 4" in str(read.skipped)
    (tmp_path / "own.csv").write_text("picture,question,answers\npictures/a.png,Which?,this | that\n")
    assert read_questions(tmp_path / "own.csv").records[0].answers == ("this", "that")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "{", "a.jsonl, line 1 is not JSON"),
        ("a.jsonl", "3", "line 1 is not a record"),
        (
            "a.csv",
            "Bild;question\n",
            "no column for the picture; its columns are: Bild, question. Name one of them picture",
        ),
        ("v2_x_train_questions.json", "{", "cannot be read as JSON"),
        ("v2_x_train_questions.json", "{}", 'no list "questions"'),
        ("else.txt", "", "no file"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(Problem, match=message):
        read_questions(tmp_path / name if name.startswith("a.") else tmp_path, "train")
    with pytest.raises(Problem, match="neither a folder nor a file"):
        read_questions(tmp_path / "nowhere")


def test_tokens_and_words():
    assert tokens("Is that-man's (red/blue) hat #1?") == ["is", "that", "mans", "red", "blue", "hat", "1"]
    words = Words.of(["is it red", "is it blue"])
    assert words.encode("Is it green?", 4).tolist() == [words.numbers["is"], words.numbers["it"], 1, 0]
    assert words.encode("red " * 30, 14).tolist() == [words.numbers["red"]] * 14
    assert words.fingerprint != Words.of(["is it"]).fingerprint


def test_odd_questions_are_named():
    asked = ["Is it red?", "", "?!", "red " * 500, "这是什么颜色", "Is it?"]
    records = Records("own", [Record(i, "a", q, ("yes",)) for i, q in enumerate(asked)], {})
    kept = records.keep_readable(Words.of(["is it red"]), 14)
    assert [r.id for r in kept.records] == [0, 5]
    said = str(kept.skipped)
    assert "Skipped: 2 empty question" in said
    assert "question 1 of own has no words" in said
    assert "question 3 of own has 500 words" in said
    assert "question 4 of own has no word that the model knows" in said


def test_answers_by_count_and_soft_targets():
    records = [Record(1, "a", "?", ("Yes",) * 3 + ("no",) * 7), Record(2, "a", "?", ("yes",) * 6 + ("a cat",) * 4)]
    answers = Answers.of(records, above=3)
    assert answers.known == ("yes", "no", "cat")
    assert answers.credits(records[0]) == pytest.approx({0: 0.9, 1: 1.0})
    assert answers.credits(Record(3, "a", "?", ("no",))) == {1: 1.0}
    assert answers.credits(Record(3, "a", "?", ("dog",))) == {}
    with pytest.raises(Problem, match="another run"):
        check_vocabulary("vocabulary.json", answers.fingerprint, "0" * 16)


def test_glove(tmp_path):
    words = Words(("blue", "red"))
    (tmp_path / "glove.txt").write_text("the 1 1 1\nred 1 2 3\n")
    vectors, found = read_glove(tmp_path / "glove.txt", words, 3)
    assert found == 1
    assert torch.equal(vectors, torch.tensor([[0.0] * 3] * 3 + [[1.0, 2, 3]]))
    (tmp_path / "bad.txt").write_text("the 1 1 1\nred 1 2\n")
    with pytest.raises(Problem, match="line 2: 2 numbers"):
        read_glove(tmp_path / "bad.txt", words)
    (tmp_path / "worse.txt").write_text("red one 2\n")
    with pytest.raises(Problem, match="line 1"):
        read_glove(tmp_path / "worse.txt", words)
    with pytest.raises(Problem, match="cannot read word vectors"):
        read_glove(tmp_path / "none.txt", words)


def test_results_for_the_server(tmp_path):
    path = write_results(tmp_path / "results.json", [(1, "yes"), (2, "no")])
    assert json.loads(path.read_text()) == [{"question_id": 1, "answer": "yes"}, {"question_id": 2, "answer": "no"}]


def test_entries_that_are_no_records_are_named(tmp_path):
    """Whatever stands in the lists of a VQA file, and any string is a type."""
    picture(tmp_path / "train2014" / "COCO_train2014_000000000009.jpg")
    good = {"image_id": 9, "question": "What?", "question_id": 90}
    odd = [7, None, "text", [], {"image_id": [1], "question": "What?", "question_id": 1}, good | {"question_id": [2]}]
    answered = {"question_id": 90, "answers": ["red", {"answer": "red"}, {"no": "answer"}, None, ["x"], 3]}
    more = {"answer_type": "breed of dog", "question_type": None, "regions": None}
    vqa(tmp_path, [*odd, good], [5, None, {"answers": []}, {"question_id": [1]}, answered | more])
    read = read_questions(tmp_path, "train")
    assert read.records == [Record(90, "COCO_train2014_000000000009", "What?", ("red", "red", "3"), "breed of dog", "")]
    said = str(read.skipped)
    assert "Skipped: 6 question that is not whole" in said
    assert "Skipped: 4 annotation that is not whole" in said
    vqa(tmp_path, [good], [answered | {"answers": "red"}])
    assert read_questions(tmp_path, "train").records[0].answers == ()
