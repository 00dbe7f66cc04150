"""A file of one's own has the splits that its column names, and no others; pictures are held out whole."""

import csv
import json
from collections import defaultdict

import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.cli import application
from regard.vqa.evaluate import accuracy_of
from regard.vqa.own import NoSplit, hold_out, read_own
from regard.vqa.read import check_answers, read_questions, splits_in
from regard.vqa.records import Record

COLOURS = ("red", "green", "blue")


def command(*arguments):
    """What a command said, or the Problem that it ended with."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(application(), [str(a) for a in arguments])
    if isinstance(done.exception, Exception) and not isinstance(done.exception, Problem):
        raise done.exception
    return str(done.exception) if done.exception else done.output


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pictures of one colour with two questions each, one of them without an answer in every third."""
    folder = tmp_path_factory.mktemp("own")
    lines = []
    for i in range(30):
        colour = COLOURS[i % 3]
        Image.new("RGB", (16, 16), colour).save(folder / f"{i}.png")
        lines.append({"picture": f"{i}.png", "question": "What colour is it?", "answer": colour})
        lines.append({"picture": f"{i}.png", "question": "Is it red?", "answer": "yes" if colour == "red" else "no"})
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with (folder / "own.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)
    return folder


@pytest.mark.parametrize("name", ["own.jsonl", "own.csv"])
def test_a_file_without_splits_has_only_what_is_trained_on(place, name):
    assert len(read_questions(place / name)) == len(read_questions(place / name, "train")) == 60
    for split in ("val", "test", "pairs"):
        with pytest.raises(NoSplit, match=rf"no split '{split}': it has no column split.* regard split .*{name}"):
            read_questions(place / name, split)
    assert splits_in(place / name) == {}


@pytest.mark.parametrize("name", ["own.jsonl", "own.csv"])
def test_pictures_are_held_out_whole(place, name, tmp_path):
    out = place / f"split-{name}"
    path, pictures = hold_out(place / name, out, val=0.2, test=0.2, seed=1)
    try:
        assert path == out
        assert sum(pictures.values()) == 30
        read = {split: read_questions(path, split) for split in ("train", "val", "test")}
        assert {split: len(r) for split, r in read.items()} == {s: 2 * n for s, n in pictures.items()}
        where = defaultdict(set)
        for split, records in read.items():
            assert records.name == split
            assert not records.skipped
            for record in records.records:
                where[record.picture].add(split)
        assert all(len(splits) == 1 for splits in where.values())
        whole = {(r.picture, r.question): r.answers for r in read_questions(place / name).records}
        assert {(r.picture, r.question): r.answers for part in read.values() for r in part.records} == whole
        assert splits_in(path) == dict.fromkeys(("train", "val", "test"), True)
        with pytest.raises(NoSplit, match=r"no split 'pairs', only .*train \(\d+\)"):
            read_questions(path, "pairs")
        with pytest.raises(Problem, match="is there already"):
            hold_out(place / name, out)
        with pytest.raises(Problem, match="has splits already"):
            hold_out(path)
    finally:
        out.unlink()


def test_the_split_of_a_picture_depends_on_its_name_and_the_seed_alone(tmp_path):
    def split_of(pictures, seed=0):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("\n".join(json.dumps({"picture": p, "question": "What?"}) for p in pictures))
        written, _ = hold_out(path, val=0.3, test=0.3, seed=seed)
        return {row["picture"]: row["split"] for row in map(json.loads, written.read_text().splitlines())}

    names = [f"{i}.png" for i in range(40)]
    some, all_of_them = split_of(names[:20]), split_of(reversed(names))
    assert all(all_of_them[name] == split for name, split in some.items())
    assert split_of(names, seed=1) != all_of_them
    assert split_of([*names, *(f"./{name}" for name in names), *(f".\\{name}" for name in names)]) == split_of(names)


def test_what_cannot_be_held_out(place, tmp_path):
    with pytest.raises(Problem, match="another folder"):
        hold_out(place / "own.jsonl", tmp_path / "own.jsonl")
    with pytest.raises(Problem, match="not a file"):
        hold_out(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="less than 1"):
        hold_out(place / "own.jsonl", val=0.5, test=0.5)
    (tmp_path / "two.jsonl").write_text('{"picture": "a", "question": "Q"}\n{"picture": "b", "question": "Q"}')
    with pytest.raises(Problem, match="no picture of 2 falls into"):
        hold_out(tmp_path / "two.jsonl", val=0.01, test=0.01)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["two.jsonl"]


def test_rows_that_say_no_split_or_an_id_twice_are_named(place):
    rows = [
        {"picture": "0.png", "question": "Q", "answer": "a", "split": "train", "id": 7},
        {"picture": "1.png", "question": "Q", "answer": "a"},
        {"picture": "2.png", "question": "Q", "answer": "a", "split": "train", "id": 7},
        {"picture": "3.png", "question": "Q", "split": "test"},
    ]
    path = place / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    read = read_questions(path)
    assert [r.picture for r in read.records] == ["0.png"]
    assert "Skipped: 1 line without a split\n  some.jsonl, line 2" in str(read.skipped)
    assert "Skipped: 1 question with the id of another\n  some.jsonl, line 3: 7" in str(read.skipped)
    assert len(read_own(path, None)) == 3
    assert splits_in(path) == {"train": True, "test": False}
    with pytest.raises(Problem, match=r"test of .*some.jsonl has no answers, and a comparison needs them.*: train\."):
        check_answers(read_questions(path, "test"), path, "a comparison")


def test_what_has_no_answer_is_not_counted_as_wrong():
    records = [Record(1, "a", "Q", ("yes",) * 10), Record(2, "a", "Q")]
    assert accuracy_of(records, {1: "yes", 2: "no"}).overall == 100
    assert accuracy_of(records[1:], {2: "no"}).overall != 0  # NaN


def test_commands_refuse_a_split_that_is_not_there(place, tmp_path):
    own, features = place / "own.jsonl", tmp_path / "features"
    assert "has no column split" in command("features", own, "--backbone", "small", "--out", features, "--split", "val")
    assert "30 pictures" in command("features", own, "--backbone", "small", "--size", 16, "--out", features)
    for asked in (["train", "--validation", "val"], ["train", "--split", "test"], ["compare", "--test", "test"]):
        said = command(asked[0], own, "--features", features, "--out", tmp_path / "run", *asked[1:])
        assert "it has no column split" in said
        assert f"regard split {own}" in said
    assert not (tmp_path / "run").exists()


def test_from_one_file_to_an_evaluated_model(place, tmp_path):
    own, features, run = place / "own.jsonl", tmp_path / "features", tmp_path / "run"
    assert "train: " in command("split", own, "--out", place / "held.jsonl", "--val", 0.2, "--test", 0.2)
    command("features", own, "--backbone", "small", "--size", 16, "--out", features)
    options = ["--features", features, "--preset", "small", "--epochs", 1, "--above", 1, "--log", "none"]
    assert "overall" in command("train", place / "held.jsonl", *options, "--out", run, "--validation", "val")
    said = command("evaluate", run, place / "held.jsonl")
    assert "== val" in said
    assert "== test" in said
    assert "== train" not in said
    assert "Not new to it" not in said
    assert "Not new to it" in command("evaluate", run, own)


def test_compare_refuses_a_split_without_answers_before_it_trains(place, tmp_path):
    rows = [json.loads(line) for line in (place / "own.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["split"] = ("train", "val", "test")[number % 3]
        if row["split"] == "test":
            del row["answer"]
    path = place / "unanswered.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    said = command("compare", path, "--features", tmp_path, "--out", tmp_path / "runs")
    assert "test of" in said
    assert "Splits with answers: train, val." in said
    assert not (tmp_path / "runs").exists()
    said = command("train", path, "--features", tmp_path, "--out", tmp_path / "run", "--validation", "test")
    assert "has no answers, and validation needs them. Splits with answers: train, val." in said
    assert not (tmp_path / "run").exists()


def test_a_store_keeps_its_backbone(place, tmp_path):
    def weights(out):
        return (out / "backbone" / "model.safetensors").read_bytes()

    def store(out, *more, backbone="small"):
        return command(
            "features", place / "own.jsonl", "--backbone", backbone, "--size", 16, "--out", tmp_path / out, *more
        )

    torch.manual_seed(5)
    store("a")
    torch.manual_seed(6)
    store("b")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    store("c", "--seed", 1)
    assert weights(tmp_path / "c") != weights(tmp_path / "a")
    kept = weights(tmp_path / "c")
    assert "30 pictures" in store("c")  # no seed: the one that is there
    assert "30 pictures" in store("c", "--seed", 1)
    for more in (["--seed", 0], ["--size", 32]):
        said = store("c", *more)
        assert "and small is another" in said
        assert "--out" in said
    assert "is another" in store("c", backbone=tmp_path / "a")
    assert weights(tmp_path / "c") == kept
    assert "30 pictures" in store("c", backbone=tmp_path / "c" / "backbone")
