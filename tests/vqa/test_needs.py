"""No command judges on a split without answers: each is refused before anything is read or written."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner
from vqa_v2_folder import store_features, write_vqa_v2

from regard._problem import Problem
from regard.cli import application
from regard.training import Running
from regard.vqa import read
from regard.vqa.compare import compare_kinds
from regard.vqa.evaluate_run import evaluate_run
from regard.vqa.features import FeatureStore
from regard.vqa.needs import Need, check_splits
from regard.vqa.own import NoSplit
from regard.vqa.read import read_questions
from regard.vqa.settings import small, small_training
from regard.vqa.train import train

TINY = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}
SETTINGS = small_training(model=small(**TINY), epochs=1, above=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as VQA-v2, its features but those of test, and a run."""
    folder = tmp_path_factory.mktemp("needs")
    torch.manual_seed(0)
    data = write_vqa_v2(folder / "vqa")
    store = store_features(data, folder / "features", ("train", "val"))
    train(folder / "run", read_questions(data), store, SETTINGS, running=Running(progress=False))
    return folder


def refused(*words):
    """What a command says that ends at once."""
    done = CliRunner().invoke(application(), list(map(str, words)), prog_name="regard")
    assert isinstance(done.exception, Problem), done.output
    assert not done.stdout
    return str(done.exception)


@pytest.fixture
def unread(monkeypatch):
    """No question may be read: that takes long for half a million of them."""

    def reads(*_, **__):
        raise AssertionError("questions are read")

    monkeypatch.setattr(read, "read_vqa", reads)


def test_compare_on_vqa_v2_names_the_split_to_take(place, tmp_path, unread):
    said = refused("compare", place / "vqa", "--features", place / "features", "--out", tmp_path / "runs")
    assert said.startswith("test of ")
    assert said.endswith(
        "has no answers, and a comparison needs them. Splits with answers: train, val. Choose another: --test val"
    )
    said = refused("compare", place / "vqa", "--test", "pairs", "--out", tmp_path / "runs")
    assert "has no split 'pairs', which a comparison needs. Splits with answers: train, val." in said
    assert not (tmp_path / "runs").exists()


def test_a_comparison_from_python_is_refused_too(place, tmp_path):
    arguments = (place / "vqa", place / "features")
    with pytest.raises(Problem, match="Choose another: --test val"):
        compare_kinds(tmp_path / "runs", *arguments, SETTINGS, ["discrete-softmax"], unseen=None)
    with pytest.raises(Problem, match="Choose another: --unseen val"):
        compare_kinds(tmp_path / "runs", *arguments, SETTINGS, ["discrete-softmax"], test="val", unseen="test-dev")
    impatient = small_training(model=small(**TINY), patience=2)
    with pytest.raises(Problem, match="trains without validation"):
        compare_kinds(tmp_path / "runs", *arguments, impatient, ["discrete-softmax"], test="val", unseen=None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--validation", "test"], "validation needs them. Splits with answers: train, val. Choose another: --val"),
        (["--validation", "test-dev", "--patience", "2"], "Choose another: --validation val"),
        (["--patience", "2"], "--patience watches the accuracy on a validation split, and none is named. Name one: --"),
        (["--split", "test"], "training needs them. Splits with answers: train, val. Choose another: --split train"),
    ],
)
def test_train(place, tmp_path, unread, options, remedy):
    said = refused("train", place / "vqa", "--features", place / "features", "--out", tmp_path / "run", *options)
    assert remedy in said
    assert not (tmp_path / "run").exists()


def test_train_needs_the_features_of_its_validation_split(place, tmp_path):
    some = store_features(place / "vqa", tmp_path / "some", ["train"])
    words = ["train", place / "vqa", "--features", some.folder, "--out", tmp_path / "run", "--validation", "val"]
    assert re.search(r"some has no features of val\. .*regard features .* --split val$", refused(*words))
    assert not (tmp_path / "run").exists()


def test_patience_from_python_needs_validation(place, tmp_path):
    store = FeatureStore.open(place / "features")
    with pytest.raises(Problem, match="--patience watches"):
        train(tmp_path, read_questions(place / "vqa"), store, small_training(model=small(**TINY), patience=1))


def test_evaluate(place, tmp_path):
    """What has no answers is left out; with a folder to write to it is answered; with nothing else it is refused."""
    said = evaluate_run(place / "run", place / "vqa", [])
    assert "== val" in said
    assert "== test" not in said
    assert "Not evaluated: test, test-dev, without answers." in said
    only = write_vqa_v2(tmp_path / "only", train=2, val=2)
    for file in only.glob("*_val2014_*.json"):
        file.unlink()
    said = refused("evaluate", place / "run", only)
    assert "test, test-dev of " in said
    assert said.endswith("for an evaluation server: --out FOLDER")
    evaluate_run(place / "run", only, [], out=tmp_path / "answers")
    assert len(json.loads((tmp_path / "answers" / "test_results.json").read_text())) > 6
    row = {"picture": str(only / "train2014" / "COCO_train2014_000000000000.jpg"), "question": "What?"}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row))
    with pytest.raises(Problem, match=r"asked of .*no answers, and an evaluation needs them"):
        evaluate_run(place / "run", tmp_path / "asked.jsonl")


def test_evaluate_finds_a_split_without_pictures_before_it_begins(place, tmp_path):
    data = write_vqa_v2(tmp_path / "bare", train=2, val=2)
    for file in (data / "val2014").iterdir():
        file.unlink()
    with pytest.raises(Problem, match=r"nothing is left of val of .*no picture COCO_val2014_0"):
        evaluate_run(place / "run", data)


def test_features_of_a_split_that_was_asked_for(place, tmp_path):
    said = refused("features", place / "vqa", "--backbone", "small", "--split", "pairs", "--out", tmp_path / "made")
    assert "Splits that it has: test-dev, test, train, val." in said
    assert not (tmp_path / "made").exists()


def test_a_table_and_an_empty_folder(tmp_path):
    need = Need("test", "a comparison", "--test")
    with pytest.raises(Problem, match="neither a folder nor a file"):
        check_splits(tmp_path / "none", [need])
    for split in ("train", "test"):
        with pytest.raises(NoSplit, match="none with answers"):
            check_splits(tmp_path, [Need(split, "training")])
    table = tmp_path / "mine.jsonl"
    table.write_text(json.dumps({"picture": "a.png", "question": "Q", "answer": "a"}))
    check_splits(table, [Need("train", "training")])
    with pytest.raises(NoSplit, match=r"it has no column split.* Hold pictures out: regard split .*mine\.jsonl$"):
        check_splits(table, [need])
