"""The whole way from pictures and a table to a model, its accuracy on new pictures and a report."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.answering import answer_questions
from regard.answering.estimate import Estimate, estimate
from regard.backbones import make_backbone
from regard.training import Running
from regard.vqa import Predictor
from regard.vqa.folder import AnsweringFolder
from regard.vqa.plan import TrainingPlan
from regard.vqa.samples import read_samples
from regard.vqa.settings import small, small_training

COLOURS = {"rot": 0, "grün": 1, "blau": 2}
QUIET = Running(progress=False, log="none")
SETTINGS = small_training(
    model=small(width=16, words=16, heads=2, feed_forward=16, flat=16, fused=16, neighbours=False), epochs=2, batch=8
)


def write_data(folder, count=24, answer=lambda name: name):
    """Pictures of one colour each, and a table of German questions about them."""
    (folder / "photos").mkdir(parents=True)
    rows = []
    for i in range(count):
        name = list(COLOURS)[i % 3]
        picture = torch.zeros(20, 30, 3, dtype=torch.uint8)
        picture[..., COLOURS[name]] = 200 + i % 40
        Image.fromarray(picture.numpy()).save(folder / "photos" / f"{i}.png")
        rows.append((f"{i}.png", "Welche Farbe hat das Bild?", answer(name)))
    with (folder / "fragen.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(("Bild" if count == 0 else "Image", "Question", "Label"))
        table.writerows(rows)
    return folder / "photos", folder / "fragen.csv"


def answer(folder, out, settings=SETTINGS, **options):
    said = []
    options = {"backbone": "small", "size": 16, "running": QUIET} | options
    result = answer_questions(folder / "photos", folder / "fragen.csv", out, settings, say=said.append, **options)
    return result, "\n".join(said)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_data(folder)
    return folder, *answer(folder, folder / "run")


def test_the_whole_way(finished):
    folder, result, said = finished
    assert "24 rows: 24 questions about 24 pictures, 3 different answers" in said
    assert "splits, drawn by picture: train 17" in said
    assert "backbone: small, random weights" in said
    assert "warning: untrained features" in said
    assert "are few: expect little" in said
    assert "2 epochs" in said
    assert "MB on disk" in said
    summary = result.summary
    assert summary.questions == summary.pictures == 5
    assert summary.train_questions == 17
    assert set(summary.baselines) == {"question alone", "most frequent answer"}
    assert summary.untrained
    assert result.report.path.is_file()
    assert AnsweringFolder(folder / "run").read_summary() == summary


def test_the_samples_are_of_the_test_and_the_model_can_be_asked(finished):
    folder, _, _ = finished
    lines = (folder / "run" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    tested = {row["picture"] for row in map(json.loads, lines) if row["split"] == "test"}
    samples = read_samples(AnsweringFolder(folder / "run"))
    assert {sample.name for sample in samples} == tested
    predictor = Predictor.load(folder / "run")
    from regard.pictures import read

    assert predictor.ask(read(samples[0].picture), "Welche Farbe?").answer in COLOURS


def test_again_is_the_same_and_trains_nothing(finished):
    folder, result, _ = finished
    run = AnsweringFolder(folder / "run")
    before = run.latest().weights()
    again, _ = answer(folder, folder / "run")
    assert again.summary == result.summary
    after = run.latest().weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_backbone_that_comes_later_changes_nothing(finished, monkeypatch):
    """The choice of the first start holds: another backbone on the machine changes nothing."""
    folder, result, _ = finished
    monkeypatch.setattr("regard.answering.choice.found_backbones", lambda runs: 1 / 0)
    again, said = answer(folder, folder / "run", backbone=None, size=None)
    assert again.summary == result.summary
    assert "backbone: small, random weights" in said


def test_other_questions_are_refused_and_nothing_is_changed(finished, tmp_path):
    folder, _, _ = finished
    write_data(tmp_path, answer=lambda name: name[0])
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    with pytest.raises(Problem, match=r"was made from 24 questions of .*fragen\.csv, .*start over: --fresh"):
        answer(tmp_path, folder / "run")
    assert before == {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}


def test_fresh_starts_over_with_other_questions(tmp_path):
    write_data(tmp_path / "a", count=9)
    write_data(tmp_path / "b", count=12, answer=lambda name: name[0])
    answer(tmp_path / "a", tmp_path / "run")
    result, _ = answer(tmp_path / "b", tmp_path / "run", running=Running(progress=False, log="none", resume=False))
    assert result.summary.questions + result.summary.train_questions < 12
    assert Predictor.load(tmp_path / "run").answers.known == ("b", "g", "r")


def test_a_mistyped_path_changes_nothing_on_disk(tmp_path):
    photos, table = write_data(tmp_path)
    for pictures, questions in ((tmp_path / "fotos", table), (photos, tmp_path / "questions.csv")):
        with pytest.raises(Problem):
            answer_questions(pictures, questions, tmp_path / "run", SETTINGS, backbone="small", running=QUIET)
    with pytest.raises(Problem):
        answer_questions(photos, table, tmp_path / "run", SETTINGS, backbone=str(tmp_path / "absent"), running=QUIET)
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_command_is_not_overwritten(finished, tmp_path):
    folder, _, _ = finished
    run = AnsweringFolder(folder / "run")
    (folder / "run" / "source.json").rename(folder / "source.json")
    try:
        with pytest.raises(Problem, match="has a run of another command"):
            answer(folder, run.path)
    finally:
        (folder / "source.json").rename(folder / "run" / "source.json")


def test_too_little_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    write_data(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("usage", (), {"free": 1_000_000})())
    with pytest.raises(Problem, match=r"has 1 MB free, and about \d+ MB are needed"):
        answer(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_estimate_counts_what_is_left(finished, monkeypatch):
    folder, _, _ = finished
    counts = {}

    def look(*_, **known):
        counts.update(known)
        return Estimate(0.0, 0.0, 0)

    monkeypatch.setattr("regard.answering.run.estimate", look)
    answer(folder, folder / "run")
    assert (counts["pictures"], counts["stored"]) == (24, 24)
    weights = folder / "run" / "backbone" / "model.safetensors"
    assert counts["present"] > weights.stat().st_size
    answer(folder, folder / "elsewhere")
    assert (counts["pictures"], counts["stored"], counts["present"]) == (24, 0, 0)


def test_broken_pictures_are_left_out_and_named(tmp_path):
    photos, _ = write_data(tmp_path, count=12)
    (photos / "4.png").write_bytes(b"not a picture")
    result, said = answer(tmp_path, tmp_path / "run")
    assert "4.png is not a picture" in said
    assert result.summary.questions + result.summary.train_questions + 1 <= 12


def test_a_table_without_validation_rows_is_no_reason_to_stop_but_for_patience(tmp_path):
    _, table = write_data(tmp_path)
    lines = table.read_text(encoding="utf-8-sig").splitlines()
    parts = ["split", *("test" if i % 4 == 0 else "train" for i in range(len(lines) - 1))]
    table.write_text("\n".join(f"{line};{part}" for line, part in zip(lines, parts, strict=True)), encoding="utf-8")
    impatient = replace(SETTINGS, patience=1)
    with pytest.raises(Problem, match=r"no rows of the split val, and --patience watches"):
        answer(tmp_path, tmp_path / "run", impatient)
    assert not (tmp_path / "run").exists()
    result, _ = answer(tmp_path, tmp_path / "run")
    assert result.summary.split == "test"


def test_networks_that_are_there_need_no_space_again():
    """A run that stopped on a full disk resumes with the space that it needed at first."""
    backbone = make_backbone("small", size=32, widths=[8], depths=[1])
    plan = TrainingPlan.of(SETTINGS, questions=40, samples=20)
    sizes = {"pictures": 20, "stored": 20, "words": 20, "answers": 5}
    needed = [
        estimate(backbone, False, torch.zeros(1, 3, 32, 32), SETTINGS, plan, present=present, **sizes).disk
        for present in (0, 1000, 10**9)
    ]
    assert needed[0] - needed[1] == 1000
    assert needed[2] == 5_000_000
