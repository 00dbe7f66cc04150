"""Looking at a table before anything is started: what is found, and which pictures are held out."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard._problem import Problem
from regard.vqa.read import read_questions
from regard.vqa.survey import TABLE_SPLITS, _draw, look_at


def write_table(folder, rows, columns=("Image", "Question", "Label"), delimiter=";", name="questions.csv"):
    path = folder / name
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, delimiter=delimiter)
        table.writerow(columns)
        table.writerows(rows)
    return path


def photos(folder, count, same=()):
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i}.jpg").write_bytes(b"same" if i in same else f"picture {i}".encode())
    return folder


@pytest.fixture
def data(tmp_path):
    folder = photos(tmp_path / "photos", 20)
    rows = [(f"{i}.jpg", question, "cat") for i in range(20) for question in ("What is it?", "Was ist das?")]
    return folder, write_table(tmp_path, rows)


def test_splits_are_drawn_by_picture_and_are_the_same_again(data):
    folder, table = data
    survey = look_at(table, folder)
    assert survey.drawn
    parts = {split: set(survey.split(split).pictures) for split in TABLE_SPLITS}
    assert {split: len(names) for split, names in parts.items()} == {"train": 14, "val": 2, "test": 4}
    assert not parts["train"] & parts["test"]
    assert not parts["val"] & (parts["train"] | parts["test"])
    assert look_at(table, folder).splits == survey.splits
    assert look_at(table, folder, seed=1).splits != survey.splits


def test_no_picture_crosses_splits_however_it_is_named_or_copied(tmp_path):
    """Every training row again under another id, the picture by another spelling, an absolute path or a copy."""
    folder = photos(tmp_path / "photos", 30, same=(3, 17, 25))
    rows = []
    for i in range(30):
        for name in (f"{i}.jpg", f"./{i}.jpg", f"../photos/{i}.jpg", str(folder / f"{i}.jpg"), f"photos/{i}.jpg"):
            rows.append((name, "What is it?", "cat"))
    survey = look_at(write_table(tmp_path, rows), folder)
    assert len(survey.records) == 150
    assert sorted(survey.records.pictures) == sorted(f"{i}.jpg" for i in range(30))
    split_of = {}
    for record in survey.records.records:
        split_of.setdefault(record.picture, set()).add(survey.splits[record.id])
    assert all(len(splits) == 1 for splits in split_of.values())
    assert split_of["3.jpg"] == split_of["17.jpg"] == split_of["25.jpg"]
    assert survey.copies == 2
    assert any("copies" in sentence for sentence in survey.sentences())


def test_the_written_file_has_the_same_splits_in_every_command(data, tmp_path):
    folder, table = data
    survey = look_at(table, folder)
    survey.write(tmp_path / "stored.jsonl")
    for split in TABLE_SPLITS:
        stored = read_questions(tmp_path / "stored.jsonl", split, folder)
        assert [(r.id, r.question, r.answers) for r in stored.records] == [
            (r.id, r.question, r.answers) for r in survey.split(split).records
        ]
    again = look_at(tmp_path / "stored.jsonl", folder)
    assert not again.drawn
    assert again.digest == survey.digest


def test_the_digest_is_of_the_content_not_of_its_form(data, tmp_path):
    folder, table = data
    digest = look_at(table, folder).digest
    lines = table.read_text(encoding="utf-8-sig").splitlines()[1:]
    rows = [tuple(row) for row in csv.reader(lines, delimiter=";")]
    comma = write_table(tmp_path, rows, columns=("FILE", "query", "answer"), delimiter=",", name="comma.csv")
    assert look_at(comma, folder).digest == digest
    rows[3] = (rows[3][0], rows[3][1], "dog")
    assert look_at(write_table(tmp_path, rows, name="other.csv"), folder).digest != digest


def test_the_usual_names_of_splits_are_read(tmp_path):
    folder = photos(tmp_path / "photos", 6)
    names = ["Training", "train", "TRAIN", "validation", "dev", "Test"]
    rows = [(f"{i}.jpg", "What?", "cat", name) for i, name in enumerate(names)]
    survey = look_at(write_table(tmp_path, rows, ("image", "question", "answer", "Split")), folder)
    assert list(survey.splits.values()) == ["train", "train", "train", "val", "val", "test"]
    assert not survey.drawn


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train", "train", "holdout"], r"not known: holdout \(1\)"),
        (["train", "train", "train"], r"no rows of the split val, only of train \(3\)"),
        (["val", "test", "test"], r"no rows of the split train"),
    ],
)
def test_unknown_and_missing_splits_are_refused_by_name(tmp_path, names, message):
    folder = photos(tmp_path / "photos", 3)
    rows = [(f"{i}.jpg", "What?", "cat", name) for i, name in enumerate(names)]
    with pytest.raises(Problem, match=message):
        look_at(write_table(tmp_path, rows, ("image", "question", "answer", "split")), folder)


def test_a_picture_in_two_splits_of_the_table_is_a_warning(tmp_path):
    folder = photos(tmp_path / "photos", 3)
    rows = [("0.jpg", "a", "x", "train"), ("0.jpg", "b", "x", "test"), ("1.jpg", "a", "x", "val")]
    survey = look_at(write_table(tmp_path, rows, ("image", "question", "answer", "split")), folder)
    assert survey.shared == ("0.jpg",)
    assert any(sentence.startswith("warning: 1 pictures") for sentence in survey.sentences())


def test_what_is_found_is_said(tmp_path):
    folder = photos(tmp_path / "photos", 5)
    rows = [(f"{i}.jpg", "What?", "cat" if i else "dog", "nice") for i in range(5)]
    rows += [("absent.jpg", "What?", "cat", ""), ("1.jpg", "No answer?", "", "")]
    table = write_table(tmp_path, rows, ("image", "question", "answer", "remark"))
    text = "\n".join(look_at(table, folder).sentences())
    assert "columns: picture (image), question (question), answer (answer); not used: remark" in text
    assert "7 rows: 5 questions about 5 pictures, 2 different answers" in text
    assert "most frequent answers: cat 80 %, dog 20 %" in text
    assert "1 question without a picture" in text
    assert "absent.jpg" in text
    assert "1 question without an answer" in text


def test_nothing_usable_and_wrong_places_are_one_line(tmp_path):
    folder = photos(tmp_path / "photos", 2)
    with pytest.raises(Problem, match="no question with a picture and an answer; columns: image, question, answer"):
        look_at(write_table(tmp_path, [("x.jpg", "What?", "cat")], ("image", "question", "answer")), folder)
    with pytest.raises(Problem, match="is not a file"):
        look_at(tmp_path / "nowhere.csv", folder)
    with pytest.raises(Problem, match="is not a folder"):
        look_at(write_table(tmp_path, []), tmp_path / "nowhere")
    with pytest.raises(Problem, match="2 pictures are too few"):
        look_at(write_table(tmp_path, [("0.jpg", "a", "x"), ("1.jpg", "a", "x")]), folder)
    with pytest.raises(Problem, match="has no column for the picture; its columns are: what, question"):
        look_at(write_table(tmp_path, [], ("what", "question")), folder)


def test_jsonl_with_several_answers(tmp_path):
    folder = photos(tmp_path / "photos", 4)
    lines = [{"path": f"{i}.jpg", "question": "What?", "answers": ["cat", "kitten", "cat"], "q": 1} for i in range(4)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    survey = look_at(tmp_path / "q.jsonl", folder)
    assert survey.columns == {"picture": "path", "question": "question", "answers": "answers"}
    assert survey.unused == ("q",)
    assert survey.records.records[0].answers == ("cat", "kitten", "cat")


@given(
    count=st.integers(3, 200),
    val=st.floats(0.01, 0.45),
    test=st.floats(0.01, 0.45),
    seed=st.integers(0, 1000),
)
def test_every_split_has_pictures_and_the_shares_are_kept(count, val, test, seed):
    splits = list(_draw([f"{i}" for i in range(count)], val, test, seed).values())
    sizes = {split: splits.count(split) for split in TABLE_SPLITS}
    assert sum(sizes.values()) == count
    assert min(sizes.values()) >= 1
    if count >= 20:
        assert abs(sizes["test"] - test * count) <= 1
        assert abs(sizes["val"] - val * count) <= 1
