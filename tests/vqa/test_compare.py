"""Kinds side by side with several seeds: tables with intervals; baselines; the command line from scenes to answers."""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard._problem import Problem
from regard.cli import main
from regard.scenes import Scenes, write_scenes
from regard.vqa.accuracy import Accuracy
from regard.vqa.baseline import majority, question_only
from regard.vqa.compare import Comparison, compare_kinds
from regard.vqa.evaluate import Summary
from regard.vqa.feature_store import FeatureStore
from regard.vqa.folder import AnsweringFolder
from regard.vqa.jobs import Job, run_jobs
from regard.vqa.read import read_questions
from regard.vqa.results import MEASURES
from regard.vqa.settings import small, small_training
from regard.vqa.store import load_run
from regard.vqa.tables import cell, interval, table
from regard.vqa.train import train

TINY = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}


def regard(*arguments, code=0):
    command = [sys.executable, "-c", "from regard.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    said = regard("scenes", folder / "scenes", "--train", 30, "--val", 0, "--test", 8, "--pairs", 8, "--size", 32)
    assert "train: 30 scenes" in said
    torch.manual_seed(0)
    from regard.backbones import make_backbone, save_backbone

    save_backbone(make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2), folder / "backbone")
    made = ["features", folder / "scenes", "--backbone", folder / "backbone", "--out", folder / "features"]
    assert "val: not there" in regard(*made)
    said = regard(*made, "--split", "pairs", "--split", "test")
    assert "46 pictures, 8 x 8 x 16" in said
    return folder


def test_kinds_that_begin_with_shared_epochs(place, tmp_path):
    """Every kind goes on from the weights of one run with discrete softmax; a step this small leaves them there."""
    settings = small_training(model=small(**TINY, marks=2, sums=True), epochs=1, above=2, lr=1e-9)
    kinds, shares = ["discrete-sparsemax", "mixture-2"], []
    arguments = (tmp_path, place / "scenes", place / "features", settings, kinds)
    result = compare_kinds(*arguments, seeds=1, shared_epochs=2, progress=shares.append)
    assert result.tables().startswith("All attentions of a seed begin with the same 2 epochs with discrete-softmax.")
    assert shares == sorted(shares)
    begun, *runs = (load_run(tmp_path / f"{name}-0") for name in ("start", *kinds))
    assert begun.model.attention == "discrete-softmax"
    for run, kind in zip(runs, kinds, strict=True):
        assert run.model.attention == kind
        for name, weight in run.model.state_dict().items():
            torch.testing.assert_close(weight, begun.model.state_dict()[name], msg=name)
    with pytest.raises(Problem, match="began with the weights of start-0, now random weights"):
        compare_kinds(*arguments, seeds=1)
    other = replace(settings, model=replace(settings.model, width=8))
    records, store = read_questions(place / "scenes", "train"), FeatureStore.open(place / "features")
    with pytest.raises(Problem, match="start-0 is a run with other sizes"):
        train(tmp_path / "other", records, store, other, start=tmp_path / "start-0")
    with pytest.raises(Problem, match="start-0 is a run with other words or answers"):
        train(tmp_path / "other", records, store, replace(settings, above=60), start=tmp_path / "start-0")


def test_tables_of_two_kinds_and_two_seeds(place, tmp_path):
    settings = small_training(model=small(**TINY), epochs=1, above=2)
    kinds = ["discrete-softmax", "continuous-softmax"]
    arguments = (tmp_path, place / "scenes", place / "features", settings, kinds)
    shares = []
    result = compare_kinds(*arguments, seeds=2, prices=(0.1,), progress=shares.append, faithfulness=2, hide="features")
    assert result.tables().count("Faithfulness, 2 questions, cells hidden in the stored features, by their mean") == 2
    assert len(result.to_json()["faithfulness"]["continuous-softmax"]["insertion against centre"]) == 2
    changed = replace(settings, epochs=7, model=replace(settings.model, heads=4))
    with pytest.raises(Problem, match=r"discrete-softmax-0 has a run .*\(epochs 1, now 7; heads 2, now 4\)"):
        compare_kinds(*arguments[:3], changed, kinds, seeds=2, prices=(0.1,))
    other = Path(shutil.copytree(place / "features", tmp_path / "other"))
    said = json.loads((other / "store.json").read_text())
    (other / "store.json").write_text(
        json.dumps(said | {"features": said["features"] | {"weights": "of another backbone"}})
    )
    with pytest.raises(Problem, match=r"made by .*fingerprint of another backbone, not"):
        compare_kinds(*arguments[:2], other, settings, kinds, seeds=2, prices=(0.1,))
    written = AnsweringFolder(tmp_path / "discrete-softmax-0").read_data()
    data = json.loads((tmp_path / "discrete-softmax-0" / "data.json").read_text())
    (tmp_path / "discrete-softmax-0" / "data.json").write_text(json.dumps(data | {"digest": "of another"}))
    with pytest.raises(Problem, match=r"discrete-softmax-0 has a run trained on .*, digest of another, and this is .*"):
        compare_kinds(*arguments, seeds=2, prices=(0.1,))
    (tmp_path / "discrete-softmax-0" / "data.json").write_text(json.dumps(written.to_json()))
    rows = ["discrete-softmax", "continuous-softmax", "test-MCA, lambda 0.1", "question only", "majority"]
    assert list(result.accuracy) == rows
    assert list(result.quality) == [*rows[:3], "even spread", "centred blob"]
    assert result.quality["even spread"]["one region"]["mass"] == pytest.approx(
        result.quality["even spread"]["one region"]["area"], abs=1e-5
    )
    assert len(result.accuracy["discrete-softmax"]["overall"]) == 2
    assert len(result.accuracy["discrete-softmax"]["unseen pairs"]) == 2
    assert sum(v[0] for v in result.components["test-MCA, lambda 0.1"].values()) == pytest.approx(100)
    said = result.tables()
    assert said.count("±") > 20
    for name in ("yes/no", "nearest", "pointing", "several", "K = 1", "unseen pairs"):
        assert name in said
    again = compare_kinds(*arguments, seeds=2, prices=(0.1,))
    assert again.accuracy == result.accuracy
    assert json.loads((tmp_path / "results.json").read_text())["accuracy"].keys() == result.accuracy.keys()


def test_a_split_without_features_is_found_before_training(place, tmp_path, monkeypatch, capsys):
    settings = small_training(model=small(**TINY), epochs=1, above=2)
    some = [f"--split={name}" for name in ("train", "test")]
    regard("features", place / "scenes", "--backbone", place / "backbone", "--out", tmp_path / "some", *some)
    with pytest.raises(Problem, match=r"some has no features of pairs\. .*regard features .* --split pairs"):
        compare_kinds(tmp_path / "runs", place / "scenes", tmp_path / "some", settings, ["discrete-softmax"])
    assert not (tmp_path / "runs").exists()
    asked = []
    monkeypatch.setattr(
        "regard.vqa.compare.compare_kinds", lambda *_, unseen, **__: asked.append(unseen) or Comparison()
    )
    monkeypatch.chdir(tmp_path)
    for features in (tmp_path / "some", place / "features"):
        monkeypatch.setattr(sys, "argv", ["regard", "compare", str(place / "scenes"), "--features", str(features)])
        with pytest.raises(SystemExit):
            main()
    assert asked == [None, "pairs"]


def _keeps(job):
    return os.environ.get("MALLOC_TRIM_THRESHOLD_"), torch.get_num_threads()


def test_finished_jobs_are_only_evaluated(tmp_path, monkeypatch):
    (tmp_path / "done").write_text("1.0\n")
    job = Job(AnsweringFolder(tmp_path), tmp_path / "nothing", tmp_path / "nothing", small_training())
    before = dict(os.environ)
    assert run_jobs([job, job], _keeps) == [(str(2**33), 1)] * 2
    assert dict(os.environ) == before
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")  # who sets it knows why
    assert run_jobs([job], _keeps) == [("1000000", 1)]


def test_a_failing_job_is_told(tmp_path):
    job = Job(AnsweringFolder(tmp_path), tmp_path / "nothing", tmp_path / "nothing", small_training())
    with pytest.raises(Problem, match="nothing"):
        run_jobs([job, job], _keeps)


def test_untrained_weights_and_mistyped_paths(place, tmp_path):
    """Random weights are said to be random; what is mistyped changes nothing."""
    out = tmp_path / "features"
    scenes = place / "scenes"
    said = regard("features", scenes, "--backbone", "small", "--size", 32, "--split", "test", "--out", out)
    assert "Untrained: the weights of this backbone are random" in said
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = regard("features", scenes, "--backbone", place / "backbone", "--split", "test", "--out", out, code=1)
    assert "--fresh" in other
    (tmp_path / "mine.csv").write_text("picture,question,answer\n1.png,What is it?,a cat\n")
    typo = ("features", tmp_path / "mine.csv", "--backbone", "small", "--size", 32)
    assert "Check" in regard(*typo, "--out", out, code=1)
    assert "Check" in regard(*typo, "--out", tmp_path / "new", code=1)
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    backbone = ("--backbone", place / "backbone", "--split", "test", "--out", out)
    assert "Untrained" not in regard("features", scenes, *backbone, "--fresh")


def test_from_the_command_line(place, tmp_path):
    out = tmp_path / "run"
    options = [
        "--features",
        place / "features",
        "--out",
        out,
        "--preset",
        "small",
        "--epochs",
        1,
        "--validation",
        "test",
    ]
    said = regard("train", place / "scenes", *options, "--validation=test", "--attention", "continuous-sparsemax")
    assert "overall" in said
    picture = place / "scenes" / "test" / "COCO_test_000000000000.png"
    said = regard("ask", out, picture, "What colour is the ring?")
    assert "continuous-sparsemax: looks most at" in said
    told = json.loads(regard("ask", out, picture, "Is there a red ring?", "--json", "--attention", "mixture-2"))
    assert len(told["density"]["components"]) <= 2
    assert "knows no word" in regard("ask", out, picture, "这是什么", code=1)
    assert "is not a file" in regard("ask", out, tmp_path / "none.png", "What?", code=1)
    assert "attention" in regard("ask", out, picture, "What colour?", "--attention", "wrong", code=1)
    assert "no preset" in regard("train", place / "scenes", "--preset", "huge", code=1)
    assert "holds no features" in regard("train", place / "scenes", "--features", tmp_path, code=1)


def test_baselines():
    train, test = (list(read_scenes(split, count)) for split, count in (("train", 200), ("test", 60)))
    blind, common = question_only(train, test), majority(train, test)
    assert 15 < common.overall < 40
    assert 15 < blind.overall < 40
    assert blind.by_question_type["exists"] > 35


def read_scenes(split, count):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_questions(write_scenes(Scenes(split, count, size=32), Path(folder)), split).records


def test_intervals():
    from scipy import stats

    values = [80.0, 81.5, 84.0]
    low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-3)
    assert math.isnan(interval([1.0])[1])
    assert cell([math.nan]) == "-"
    assert table("T", {"a": {"x": "1"}}).splitlines() == ["T", "     x", "a    1"]


def test_types_may_have_any_name():
    """The data's own types: none, those of other columns, one name for answers and for questions."""
    accuracy = Accuracy(50.0, {"overall": 10.0, "colour": 20.0}, {"colour": 30.0, "several": 40.0, "": 60.0}, {}, {})
    comparison = Comparison()
    comparison.add("mine", Summary(accuracy, {"several": dict.fromkeys(MEASURES, 0.5)}, {}))
    # Nor is the number of regions taken for the family of the same name: there is no table of masses by family.
    answers, families, several = comparison.tables().split("\n\n")
    assert answers.splitlines()[1].split() == ["colour", "type", "overall", "overall"]
    assert answers.splitlines()[2].split() == ["mine", "20.0", "10.0", "50.0"]
    assert families.splitlines()[1].split() == ["colour", "several", "no", "type"]
    assert families.splitlines()[2].split() == ["mine", "30.0", "40.0", "60.0"]
    assert "several" in several
    assert "0.500" in several
    nameless = Comparison()
    nameless.add("mine", Summary(Accuracy(50.0, {"breed": 50.0}, {"": 50.0}, {}, {}), {}, {}))
    assert "family" not in nameless.tables()
