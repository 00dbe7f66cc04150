"""Asking: one question in words and as a drawing, and a whole table."""

import csv
import json
import shutil

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from regard._problem import Problem
from regard.cli import application
from regard.continuous import Gaussian, Mixture, Paraboloid
from regard.pictures import read
from regard.vqa import answer_table as module
from regard.vqa.answer_table import answer_table
from regard.vqa.looks import half_of_attention, highest_point
from regard.vqa.predict import Predictor

QUESTION = "Welche Farbe hat die linke Hälfte?"


def command(*arguments):
    return CliRunner().invoke(application(), list(map(str, ("ask", *arguments))))


def refused(*arguments):
    done = command(*arguments)
    assert isinstance(done.exception, Problem), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.fixture(scope="session")
def predictor(german):
    return Predictor.load(german.path)


def test_the_highest_point_is_that_of_the_density():
    weights = torch.zeros(4, 4)
    weights[0, 0] = 1.0  # the density looks elsewhere
    mean = torch.tensor([0.61, 0.37])
    for density in (Gaussian(mean, 0.02 * torch.eye(2)), Paraboloid(mean, 0.02 * torch.eye(2))):
        assert highest_point(weights, density) == pytest.approx((0.61, 0.37), abs=1e-5)
    assert highest_point(weights, None) == (0.125, 0.125)


def test_the_highest_point_of_a_mixture_is_no_mean_of_its_parts():
    parts = Gaussian(torch.tensor([[0.2, 0.2], [0.8, 0.7]]), torch.stack([0.02 * torch.eye(2), 0.002 * torch.eye(2)]))
    density = Mixture(torch.tensor([0.6, 0.4]), parts)
    assert highest_point(torch.ones(2, 2), density) == pytest.approx((0.8, 0.7), abs=1e-3)
    # Two parts so near that the highest point lies between them.
    near = Gaussian(torch.tensor([[0.45, 0.5], [0.55, 0.5]]), (0.01 * torch.eye(2)).expand(2, 2, 2))
    assert highest_point(torch.ones(2, 2), Mixture(torch.tensor([0.5, 0.5]), near)) == pytest.approx(
        (0.5, 0.5), abs=1e-3
    )


def test_a_plateau_points_at_one_of_its_cells():
    weights = torch.zeros(3, 5)
    weights[:, 0] = weights[0, :] = 0.2  # an angle, whose common middle has no weight
    x, y = highest_point(weights, None)
    assert weights[int(y * 3), int(x * 5)] > 0


def test_half_of_an_even_attention_lies_on_half_of_the_picture():
    assert half_of_attention(torch.full((3, 3), 1 / 9), None) == pytest.approx(0.5)
    narrow = half_of_attention(torch.ones(3, 3), Gaussian(torch.full((2,), 0.5), 0.001 * torch.eye(2)))
    # The ellipse of half of a Gaussian has the area 2 pi ln 2 times the root of the determinant.
    assert narrow == pytest.approx(2 * 3.14159 * 0.6931 * 0.001, rel=0.05)


def test_an_answer_in_words(german, predictor):
    picture = german.table.parent / "0.png"
    prediction = predictor.ask(read(picture), QUESTION)
    done = command(german.path, picture, QUESTION + " Ei?")
    lines = done.stdout.splitlines()
    again = predictor.ask(read(picture), QUESTION + " Ei?")
    assert lines[0] == again.answer
    x, y = again.density.mean.tolist()
    assert f"continuous-softmax: looks most at {100 * x:.0f} % from the left, {100 * y:.0f} % from the top" in lines[2]
    assert "half of the attention lies on" in lines[2]
    assert lines[3] == "words that the model does not know: ei"
    assert "bits" not in done.stdout
    several = command(german.path, picture, QUESTION, "--attention", "discrete-softmax", "--attention", "mixture-2")
    assert "discrete-softmax: looks most" in several.stdout
    assert "mixture-2: looks most" in several.stdout
    assert "does not know" not in several.stdout
    jsons = command(
        german.path, picture, QUESTION, "--json", "--attention", "discrete-softmax", "--attention", "mixture-2"
    )
    assert [json.loads(line)["attention"] for line in jsons.stdout.splitlines()] == ["discrete-softmax", "mixture-2"]
    assert json.loads(command(german.path, picture, QUESTION, "--json").stdout)["answer"] == prediction.answer


def test_a_drawing_has_a_panel_for_each_attention(german, tmp_path):
    picture = german.table.parent / "0.png"
    one, three = tmp_path / "one.png", tmp_path / "three.png"
    assert f"Drawn: {one}" in command(german.path, picture, QUESTION, "--picture", one).stdout
    kinds = [part for kind in ("discrete-softmax", "mixture-2", "continuous-softmax") for part in ("--attention", kind)]
    command(german.path, picture, QUESTION, "--picture", three, *kinds)
    with Image.open(one) as a, Image.open(three) as b:
        assert b.width > 1.5 * a.width
    alone = command(german.path, picture, QUESTION, "--json", "--picture", tmp_path / "a.svg")
    json.loads(alone.stdout)  # what was drawn is said elsewhere


def test_what_cannot_be_asked_is_one_line_before_the_model_is_loaded(german, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "load", lambda *_: pytest.fail("the model was loaded"))
    picture, table = german.table.parent / "0.png", german.table
    assert "cannot be written as 'a.gif'" in refused(german.path, picture, QUESTION, "--picture", tmp_path / "a.gif")
    assert "is the picture itself" in refused(german.path, picture, QUESTION, "--picture", picture)
    assert "--table" in refused(german.path)
    assert "--table" in refused(german.path, picture)
    assert "--table" in refused(german.path, picture, QUESTION, "--out", "x.csv")
    assert "Leave out" in refused(german.path, picture, "--table", table, "--out", tmp_path / "x.csv")
    assert "--out answers.csv" in refused(german.path, "--table", table)
    assert "itself" in refused(german.path, "--table", table, "--out", table)
    assert "another format" in refused(german.path, "--table", table, "--out", tmp_path / "x.jsonl")
    assert "is not a file" in refused(german.path, "--table", tmp_path / "no.csv", "--out", tmp_path / "x.csv")
    two = ("--attention", "mixture-2", "--attention", "discrete-softmax")
    assert "one --attention" in refused(german.path, "--table", table, "--out", tmp_path / "x.csv", *two)
    assert "attention" in refused(german.path, picture, QUESTION, "--attention", "wrong")


def rows_of(path, delimiter=";"):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_a_table_comes_back_with_answers(german, predictor, tmp_path, monkeypatch):
    table, out = tmp_path / "neu.csv", tmp_path / "deep" / "answers.csv"
    (tmp_path / "kaputt.png").write_bytes(b"no picture")
    lines = [
        "Nr;Image;Frage;Question",
        f'1;0.png;"a;""b""";{QUESTION}',
        "2;0.png;;Ist die linke Hälfte grün?",
        "3;missing.png;;Ist die linke Hälfte grün?",
        "4;kaputt.png;;Ist die linke Hälfte grün?",
        "5;1.png;;",
        "6;1.png;;what is this",
        "7;;;Ist die linke Hälfte grün?",
        f"8;.\\0.png; x ;{QUESTION.upper()} Zebra",
    ]
    table.write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8")
    before = table.read_bytes()
    passes = []
    monkeypatch.setattr(module, "grids", lambda *a, grids=module.grids: passes.append(1) or grids(*a))
    calls = []
    done = answer_table(
        predictor, table, out, pictures=german.table.parent, progress=lambda done, of: calls.append((done, of))
    )
    rows = rows_of(out)
    assert table.read_bytes() == before
    assert len(passes) == 1  # one picture, whatever the number of questions
    assert calls[-1] == (8, 8)
    assert list(rows[0]) == ["Nr", "Image", "Frage", "Question", "answer", "score", "unknown_words", "problem"]
    assert [row["Nr"] for row in rows] == list("12345678")
    assert rows[0]["Frage"] == 'a;"b"'
    assert rows[7]["Frage"] == " x "
    picture = read(german.table.parent / "0.png")
    for row in (rows[0], rows[1], rows[7]):
        prediction = predictor.ask(picture, row["Question"])
        assert row["answer"] == prediction.answer
        assert float(row["score"]) == pytest.approx(prediction.confidence, abs=2e-4)
        assert row["problem"] == ""
    assert rows[7]["unknown_words"] == "zebra"
    whys = {row["Nr"]: row["problem"] for row in rows if not row["answer"]}
    assert all(row["score"] == "" for row in rows if not row["answer"])
    assert "missing.png" in whys["3"]
    assert "kaputt.png" in whys["4"]
    assert whys["5"] == "the question is empty"
    assert whys["6"] == "the model knows no word of the question"
    assert whys["7"] == "there is no picture in the row"
    assert (done.rows, done.answered) == (8, 3)
    assert out.read_bytes().startswith(b"\xef\xbb\xbf")


def test_a_column_of_the_same_name_is_kept(german, predictor, tmp_path):
    out = tmp_path / "answers.csv"
    answer_table(predictor, german.table, out)
    rows = rows_of(out)
    given = rows_of(german.table)
    assert [row["answer"] for row in rows] == [row["answer"] for row in given]
    held = [row for row in rows if row["split"] == "test"]
    predicted = list(german.evaluation.predictions.values())
    assert [row["model_answer"] for row in held] == predicted  # the same as in the evaluation
    assert not out.read_bytes().startswith(b"\xef\xbb\xbf")


def test_records_of_json_stay_as_they_are(german, predictor, tmp_path):
    lines = tmp_path / "neu.jsonl"
    records = [{"picture": "0.png", "question": QUESTION, "tags": ["ä", 1]}, {"image": "1.png", "question": 7}]
    lines.write_text("\n".join(json.dumps(r) for r in records), encoding="utf-8")
    out = tmp_path / "out.jsonl"
    answer_table(predictor, lines, out, pictures=german.table.parent, attention="discrete-sparsemax")
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert written[0] | records[0] == written[0]
    assert (
        written[0]["answer"]
        == predictor.ask(read(german.table.parent / "0.png"), QUESTION, "discrete-sparsemax").answer
    )
    assert written[0]["unknown_words"] == []
    assert written[1]["answer"] == ""
    assert written[1]["unknown_words"] == ["7"]
    assert written[1]["score"] is None
    listed = tmp_path / "neu.json"
    listed.write_text(json.dumps(records), encoding="utf-8")
    answer_table(predictor, listed, tmp_path / "out.json", pictures=german.table.parent)
    assert len(json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))) == 2


def test_a_table_is_written_whole_or_not_at_all(german, predictor, tmp_path, monkeypatch):
    out = tmp_path / "answers.csv"
    out.write_text("earlier")

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_table(predictor, german.table, out, progress=stop)
    assert out.read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["answers.csv"]
    shutil.copy(german.table, tmp_path / "here.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "here.csv")
    with pytest.raises(Problem, match="itself"):
        answer_table(predictor, tmp_path / "here.csv", tmp_path / "link.csv")


@pytest.mark.parametrize(("name", "content"), [("bad.csv", "a,b\n1,2\n"), ("bad.jsonl", '{"a": 1}\n{"b": 2}')])
def test_a_table_without_pictures_is_refused_with_its_columns(predictor, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(Problem, match="no column for the picture; its columns are: a, b"):
        answer_table(predictor, tmp_path / name, tmp_path / f"out-{name}")


def test_the_command_answers_a_table(german, tmp_path):
    done = command(german.path, "--table", german.table, "--out", tmp_path / "a.csv", "--attention", "mixture-2")
    assert done.exit_code == 0
    assert done.stdout == f"{(tmp_path / 'a.csv').as_posix()}: 96 of 96 questions answered\n"
