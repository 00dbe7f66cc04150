"""Tables 6.1 to 6.4 and Figures 6.4 to 6.11 by name, on scenes and on a folder as VQA-v2: what is trained and made."""

import json
import re
from dataclasses import replace

import numpy
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner
from vqa_v2_folder import store_features, write_vqa_v2

from regard._problem import Problem
from regard.cli import application
from regard.scenes import Scenes, write_scenes
from regard.thesis import EXPERIMENTS, FigureExperiment, experiment
from regard.thesis.figures import Watched, _chosen
from regard.thesis.hyperparameters import TABLE_6_1, hyperparameters
from regard.thesis.printed import (
    DISCRETE,
    ROWS_6_2,
    ROWS_6_3,
    SHARES_6_4,
    SOFTMAX,
    SPARSEMAX,
    QuestionChoice,
)
from regard.thesis.setup import ThesisSetup
from regard.thesis.tables import make_table
from regard.vqa import jobs
from regard.vqa.records import Record
from regard.vqa.settings import TrainSettings, full_training, small, small_training
from regard.vqa.store import load_run

TINY = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}
SIZES = [part for name, value in TINY.items() for part in (f"--{name.replace('_', '-')}", str(value))]
SMALL = ["--preset", "small", *SIZES, "--epochs", "1", "--above", "2"]


@pytest.fixture(autouse=True)
def in_this_process(request, monkeypatch):
    """Jobs run here, one after the other, but for one test: processes take longer to start than these to train."""

    def run_here(function, inputs, *_, **__):
        return [function(one) for one in inputs]

    if request.function is not test_several_seeds:
        monkeypatch.setattr(jobs, "run_parallel", run_here)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Scenes, and a folder as VQA-v2, with their features; one folder of runs for each."""
    folder = tmp_path_factory.mktemp("thesis")
    torch.manual_seed(0)
    for split, count in (("train", 24), ("test", 8)):
        write_scenes(Scenes(split, count, size=32), folder / "scenes")
    store_features(folder / "scenes", folder / "scene-features", ("train", "test"))
    store_features(write_vqa_v2(folder / "vqa"), folder / "vqa-features", ("train", "val", "test"))
    return folder


def regard(*words, code=0):
    done = CliRunner().invoke(application(), list(map(str, words)), prog_name="regard")
    if code == 0:
        assert done.exit_code == 0, done.exception
        return done.stdout
    assert isinstance(done.exception, Problem)
    return str(done.exception)


def on_scenes(place, name, *more, code=0):
    options = ["--features", place / "scene-features", "--out", place / "out", *SMALL, *more]
    return regard("thesis", name, place / "scenes", *options, code=code)


def test_the_list():
    said = regard("thesis")
    for one in EXPERIMENTS:
        assert re.search(rf"^{re.escape(one.name)} .*; trains ", said, re.MULTILINE)
    assert [one.name for one in EXPERIMENTS] == [
        *(f"table-6.{i}" for i in range(1, 5)),
        *(f"figure-6.{i}" for i in range(4, 12)),
    ]
    assert "Choose one of table-6.1, " in regard("thesis", "table-9", code=1)
    with pytest.raises(Problem, match=r"no 'figure-6\.3'"):
        experiment("figure-6.3")


def test_the_printed_figures_are_consistent():
    """Typed by hand: what the thesis prints twice is the same here, and shares are of one whole."""
    both = {(row.model, row.penalty): (row.dev, row.standard) for row in ROWS_6_2}
    for row in ROWS_6_3:
        assert both.get((row.model, row.penalty), (row.dev, row.standard)) == (row.dev, row.standard)
        for values in (row.dev, row.standard):
            assert values[1] < values[2] < values[3] < values[0]  # number, other, overall, yes/no
    for split in ("dev", "standard"):  # overall is one mean of the three types in all rows, but for rounding
        rows = numpy.array([getattr(row, split) for row in (*ROWS_6_2, *ROWS_6_3)])
        shares = numpy.linalg.lstsq(rows[:, :3], rows[:, 3], rcond=None)[0]
        assert shares.sum() == pytest.approx(1, abs=5e-3)
        assert abs(rows[:, :3] @ shares - rows[:, 3]).max() < 0.02
    assert all(sum(shares) == pytest.approx(100, abs=0.02) for shares in SHARES_6_4.values())
    assert [shares[0] for shares in SHARES_6_4.values()] == sorted(shares[0] for shares in SHARES_6_4.values())


def test_table_6_1(place):
    said = regard("thesis", "table-6.1", "--features", place / "none")
    assert "| Batch size | 64 | 64 |  |" in said
    assert "| N | {49, 100} | {49, 100} |  |" in said
    assert said.count("differs") == 2  # the features are not made yet; integrals are exact
    exact = "Number of integration intervals (2D continuous sparsemax)"
    ours = hyperparameters(TrainSettings(), (14, 14, 2048))
    assert list(ours) == list(TABLE_6_1)
    assert {entry for entry in TABLE_6_1 if ours[entry] != TABLE_6_1[entry]} == {exact}
    other = hyperparameters(full_training(), (14, 14, 2048))
    assert {entry for entry in TABLE_6_1 if other[entry] != TABLE_6_1[entry]} == {exact, "Sigma", "Padding"}
    for change in ({"lr": 2e-4}, {"epochs": 12}, {"schedule": "cosine"}):
        assert {e for e in TABLE_6_1 if hyperparameters(replace(TrainSettings(), **change))[e] != TABLE_6_1[e]} - {
            exact,
            "Input image features size",
        }


def test_tables_on_scenes(place):
    said = on_scenes(place, "table-6.2")
    assert "| Discrete softmax | - | - | " in said
    assert "| 2D continuous sparsemax | 49 | - | " in said
    assert "83.40 | 43.59 | 55.91 | 65.83 | 66.13 |" in said
    assert "question only, without the picture" in said
    for note in ("8 x 8 x 16; in the thesis 14 x 14 x 2048", "width 16 (512)", "split test of scenes", "GloVe"):
        assert note in said
    numbers = json.loads((place / "out" / "table-6.2.json").read_text())
    assert [row.get("basis") for row in numbers["rows"]] == [
        *(None, "thesis-100", "thesis-49", "thesis-100", "thesis-49"),
        *(None, None),
    ]
    assert all(len(row["ours"]["overall"]) == 1 for row in numbers["rows"])
    assert (place / "out" / "table-6.2.md").read_text().strip() == said.split("\n\nTable and numbers")[0]
    runs = {path.name for path in (place / "out" / "runs").iterdir()}
    assert runs == {
        "discrete-softmax-0",
        *(f"continuous-{map_}-thesis-{n}-0" for map_ in ("softmax", "sparsemax") for n in (49, 100)),
    }
    run = load_run(place / "out" / "runs" / "continuous-softmax-thesis-49-0").model.settings
    assert (run.basis, run.padding, run.em_iterations, run.width) == ("thesis-49", True, "thesis", 16)
    # Another table shares the runs, and trains the two that are new.
    times = {path: path.stat().st_mtime_ns for path in (place / "out" / "runs").glob("*/done")}
    said = on_scenes(place, "table-6.3")
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(list((place / "out" / "runs").glob("*/done"))) == len(times) + 2
    assert "| test-MCA | 100 | 500 | " in said
    assert "lambda is divided by the 64 cells" in said
    again = on_scenes(place, "table-6.3")
    assert again == said
    shared = json.loads((place / "out" / "table-6.3.json").read_text())["rows"][0]["ours"]
    assert shared == numbers["rows"][0]["ours"]
    said = on_scenes(place, "table-6.4")
    rows = json.loads((place / "out" / "table-6.4.json").read_text())["rows"]
    assert [row["price"] for row in rows] == [10 / 64, 100 / 64, 500 / 64]
    assert all(sum(values[0] for values in row["ours"].values()) == pytest.approx(100) for row in rows)
    ones = [row["ours"]["1"][0] for row in rows]
    assert ones == sorted(ones)  # a higher price, fewer components
    assert f"| 10 | 0.156 | {ones[0]:.2f} |" in said
    assert "| 58.58 | 20.81 | 8.02 | 6.77 | 5.82 |" in said


def test_other_settings_are_refused_in_the_same_folder(place):
    said = on_scenes(place, "table-6.2", "--epochs", "2", code=1)
    assert re.search(r"has a run with other settings \(epochs 1, now 2\)", said)


@pytest.mark.parametrize("name", [one.name for one in EXPERIMENTS if isinstance(one, FigureExperiment)])
def test_figures(place, name):
    said = on_scenes(place, name)
    shown = json.loads((place / "out" / f"{name}.json").read_text())
    assert len(said.splitlines()) == len(shown["figures"]) == (2 if name == "figure-6.8" else 1)
    for figure, line in zip(shown["figures"], said.splitlines(), strict=True):
        with Image.open(place / "out" / figure["path"]) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 200
        assert figure["question"] in line
        assert len(figure["answers"]) == (4 if int(name.rpartition(".")[2]) > 8 else 3)
        assert figure["fits"] != ("no question is answered as in the thesis' figure" in line)
    assert len({figure["id"] for figure in shown["figures"]}) == len(shown["figures"])


def test_figures_that_show_one_question(place):
    def shown(name):
        on_scenes(place, name)
        return [figure["id"] for figure in json.loads((place / "out" / f"{name}.json").read_text())["figures"]]

    assert shown("figure-6.11") == shown("figure-6.4")
    assert shown("figure-6.10") == shown("figure-6.8")[1:]


def test_a_question_of_ones_own(place):
    said = on_scenes(place, "figure-6.4", "--question", "3")
    assert json.loads((place / "out" / "figure-6.4.json").read_text())["figures"][0]["id"] == 3
    assert len(said.splitlines()) == 1
    assert "Their ids are such as" in on_scenes(place, "figure-6.4", "--question", "none", code=1)
    assert "--question is for a figure" in on_scenes(place, "table-6.2", "--question", "3", code=1)


def test_the_rule_of_a_figure():
    records = [Record(i, "a", "Q", ("1",) * 10, "number" if i < 4 else "other") for i in range(6)]

    def watched(right, entropy=(0,) * 6, area=(0,) * 6, components=(1,) * 6):
        values = (torch.tensor(x, dtype=torch.float64) for x in (entropy, area, components))
        return Watched(dict(enumerate(right)), *values)

    seen = {
        DISCRETE: watched((0, 0, 1, 0, 0, 0), entropy=(5, 4, 9, 6, 7, 8)),
        SOFTMAX: watched((1, 1, 0, 1, 1, 0), area=(3, 1, 8, 2, 0, 9), components=(1, 3, 2, 1, 5, 5)),
        SPARSEMAX: watched((1, 1, 0, 0.3, 1, 0)),
    }

    def chosen(*rule):
        return _chosen(QuestionChoice(*rule), seen, records)

    assert chosen("number", "wrong", "right", "scattered") == (0, True)  # 3 is more scattered, and sparsemax is wrong
    assert chosen("other", "wrong", "right", "scattered") == (4, True)  # 5 is more scattered, and answered wrongly
    assert chosen("number", "right", "wrong", "wide") == (2, True)
    assert chosen("number", "wrong", "right", "narrow") == (1, True)
    assert chosen("number", None, "right", "wide") == (0, True)
    assert chosen("number", None, "right", "wide", 1) == (1, True)
    assert chosen("number", None, "right", "many") == (1, True)
    assert chosen("number", "right", "right", "wide") == (2, False)  # none is answered so: the widest
    assert chosen("colour", None, None, "scattered") == (2, True)  # no such type: of all


def test_on_vqa_v2_it_judges_on_val_and_answers_the_test_splits(place):
    options = ["--features", place / "vqa-features", "--out", place / "served", *SMALL]
    said = regard("thesis", "table-6.2", place / "vqa", *options)
    assert "questions of the split val of vqa" in said
    answers = sorted(path.name for path in (place / "served" / "answers").iterdir())
    assert len(answers) == 10  # five rows, two splits
    assert "discrete-softmax-0-test-dev.json" in answers
    asked = json.loads((place / "vqa" / "v2_OpenEnded_mscoco_test2015_questions.json").read_text())["questions"]
    written = json.loads((place / "served" / "answers" / "discrete-softmax-0-test.json").read_text())
    assert {one["question_id"] for one in written} == {one["question_id"] for one in asked}
    said = regard("thesis", "table-6.2", place / "vqa", *options, "--test", "test", code=1)
    assert said.endswith("Splits with answers: train, val. Choose another: --test val")


def test_several_seeds(place):
    settings = small_training(model=small(**TINY), epochs=1, above=2)
    setup = ThesisSetup(place / "seeds", place / "scenes", place / "scene-features", settings, seeds=2)
    table = make_table(experiment("table-6.4"), setup)
    assert all(len(row["ours"][1]) == 2 for row in table.numbers["rows"])
    assert " ± " in table.markdown()
    with pytest.raises(Problem, match="without validation"):
        ThesisSetup(place / "seeds", place / "scenes", place / "scene-features", replace(settings, patience=1))


def test_what_is_missing_is_said_first(place, tmp_path):
    assert "table-6.2 needs questions" in regard("thesis", "table-6.2", code=1)
    said = regard(
        "thesis", "table-6.2", place / "scenes", "--features", place / "vqa-features", "--out", tmp_path, code=1
    )
    assert "has no features of train" in said
    assert not list(tmp_path.iterdir())
