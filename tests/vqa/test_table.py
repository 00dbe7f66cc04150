"""Tables as people have them: names of columns, delimiters, encodings, several answers, paths."""

import json

import pytest
from PIL import Image

from regard._problem import Problem
from regard.vqa import hold_out
from regard.vqa.read import read_questions
from regard.vqa.table import TABLE_COLUMNS, read_rows

ROW = {"picture": "a b.png", "question": "Is it one; or two?", "answers": ["one", "two"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("a b.png", "c.jpg"):
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / name)
    return tmp_path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_delimiters_encodings_and_ends_of_lines(tmp_path, delimiter, encoding, newline):
    cells = ["a b.png", '"Is it one; or two?"', '"[""one"", ""two""]"']
    lines = [delimiter.join(["Image", "QUESTION", "Answer(s)".replace("(s)", "s")]), delimiter.join(cells), ""]
    (tmp_path / "mine.csv").write_bytes(newline.join(lines).encode(encoding))
    assert read_rows(tmp_path / "mine.csv") == [(2, ROW)]


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, known in TABLE_COLUMNS.items() for name in known])
def test_names_of_columns(tmp_path, field, name):
    columns = {"picture": "picture", "question": "question"} | {field: f" {name[:1].upper()}-{name[1:]} "}
    cells = {"picture": "a.png", "question": "What?"} | {field: "a.png" if field == "picture" else "x"}
    text = ",".join(columns.values()) + "\n" + ",".join(cells[key] for key in columns)
    (tmp_path / "mine.csv").write_text(text)
    ((_, row),) = read_rows(tmp_path / "mine.csv")
    assert row == cells


def test_json_as_a_list_and_by_lines(tmp_path):
    records = [{"image_name": "a.png", "Question": "What?", "label": 3}, {"image_name": "b.png", "Question": "Who?"}]
    (tmp_path / "mine.json").write_text(json.dumps(records, indent=2))
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))
    rows = [row for _, row in read_rows(tmp_path / "mine.json")]
    assert rows == [row for _, row in read_rows(tmp_path / "mine.jsonl")]
    assert rows[0] == {"picture": "a.png", "question": "What?", "answer": 3}


def test_bars_are_between_answers_in_a_cell_alone_and_survive_a_split(tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"picture": "a.png", "question": "What?", "answer": "a|b"}))
    assert read_rows(tmp_path / "mine.jsonl")[0][1]["answer"] == "a|b"
    lines = "".join(f'{i}.png,What?,"[""a|b"", ""c""]"\n' for i in range(30))
    (tmp_path / "mine.csv").write_text(f"image,question,answer\n{lines}")
    path, _ = hold_out(tmp_path / "mine.csv")
    assert all(row["answers"] == ["a|b", "c"] for _, row in read_rows(path))


def test_odd_cells(tmp_path):
    """An empty question is one; lines end at ends of lines alone; a quoted cell may have some."""
    text = 'image,question,answer\na.png,,cat\nb.png,What\u2028is it?,dog\nc.png,"Two\nlines?",fox\n'
    (tmp_path / "mine.csv").write_text(text, encoding="utf-8", newline="")
    assert [row["question"] for _, row in read_rows(tmp_path / "mine.csv")] == ["", "What\u2028is it?", "Two\nlines?"]


def test_where_pictures_are(folder):
    absolute = folder / "photos" / "c.jpg"
    names = ["a b.png", "photos/a b.png", "photos\\a b.png", "./c.jpg", "c", str(absolute), "gone.png"]
    table = "image;question;answer\n" + "".join(f"{name};What?;cat\n" for name in names)
    (folder / "mine.csv").write_text(table)
    records = read_questions(folder / "mine.csv", "train", folder / "photos")
    assert len(records) == 6
    assert set(records.pictures.values()) == {folder / "photos" / "a b.png", absolute}
    assert "no picture" in str(records.skipped)
    assert len(read_questions(folder / "mine.csv")) == 3  # beside the table, and by the whole path


def test_what_is_missing_or_said_twice_is_named(tmp_path):
    (tmp_path / "mine.csv").write_text("image,Frage,answer\na.png,Was?,Katze\n")
    with pytest.raises(Problem, match="no column for the question; its columns are: image, Frage, answer"):
        read_rows(tmp_path / "mine.csv")
    (tmp_path / "two.csv").write_text("image,path,question\na.png,b.png,What?\n")
    with pytest.raises(Problem, match="several columns for the picture: image, path"):
        read_rows(tmp_path / "two.csv")
    (tmp_path / "plain.csv").write_text("picture,path,question\na.png,elsewhere,What?\n")
    assert read_rows(tmp_path / "plain.csv")[0][1] == {"picture": "a.png", "path": "elsewhere", "question": "What?"}
    for name, content in (("empty.csv", ""), ("bytes.csv", b"\xff\x00\xfe")):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(Problem, match=r"no column|cannot be read"):
            read_rows(path)


def test_no_picture_crosses_splits_whatever_it_is_called(folder):
    """Every training row again, under another id and another spelling of the same picture."""
    pictures = [f"photos/{i}.png" for i in range(30)]
    for name in pictures:
        Image.new("RGB", (4, 4)).save(folder / name)
    rows = [f"{n};{name};What?;cat" for n, name in enumerate(pictures)]
    rows += [f"{n + 100};.\\{name};What?;cat".replace("/", "\\") for n, name in enumerate(pictures)]
    (folder / "mine.csv").write_text("id;Image;Question;Answer\n" + "\n".join(rows))
    path, counts = hold_out(folder / "mine.csv", val=0.2, test=0.2)
    assert sum(counts.values()) == 30
    parts = {split: {r.picture for r in read_questions(path, split).records} for split in counts}
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 30
    assert sum(len(read_questions(path, split)) for split in counts) == 60
