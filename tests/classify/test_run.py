"""From labelled pictures to a classifier: accuracy on held-out ones, where it looks, rerunning, refusing."""

import json
import os
import shutil
import sys

import pytest
import torch
from PIL import Image

import regard.cli
from regard._problem import Problem
from regard.classify import Classifier, ClassifierSettings, train_classifier
from regard.classify.folder import ClassifierFolder
from regard.pictures import Arrays, read
from regard.training import Running

QUIET = Running(progress=False, log="none")
COLOURS = ("red", "green", "blue")
SETTINGS = ClassifierSettings(pool="discrete-softmax", epochs=60, batch_size=8, lr=0.01)
SIDE, BLOB = 32, 12


def write_pictures(folder, count=36, masks=None, seed=0):
    """A coloured square at a random place of noise, its colour the class; and masks of the squares."""
    made = torch.Generator().manual_seed(seed)
    for number in range(count):
        name = COLOURS[number % 3]
        picture = torch.randint(0, 90, (SIDE, SIDE, 3), dtype=torch.uint8, generator=made)
        y, x = torch.randint(0, SIDE - BLOB, (2,), generator=made).tolist()
        picture[y : y + BLOB, x : x + BLOB, number % 3] = 250
        mask = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
        mask[y : y + BLOB, x : x + BLOB] = 255
        for place, pixels in ((folder, picture), (masks, mask)):
            if place is not None:
                (place / name).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.numpy()).save(place / name / f"{number}.png")
    return folder


def train(pictures, out, settings=SETTINGS, **options):
    said = []
    options = {"backbone": "small", "size": SIDE, "running": QUIET} | options
    return train_classifier(pictures, out, settings, say=said.append, **options), "\n".join(said)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("classes")
    write_pictures(place / "squares", masks=place / "masks")
    return place, *train(place / "squares", place / "run", masks=place / "masks")


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_learns_and_says_what_it_did(finished):
    place, outcome, said = finished
    assert "30 pictures of 3 classes to learn from, 10 each; 6 held out, drawn from them" in said
    assert "backbone: small, random weights" in said
    assert "warning: untrained features" in said
    assert "discrete-softmax and average, 60 epochs" in said
    assert "MB on disk" in said
    summary = outcome.summary
    assert list(summary.results) == ["discrete-softmax", "average"]
    assert summary.accuracy().share >= 0.7
    assert summary.results["average"].difference is None
    assert summary.results["discrete-softmax"].difference is not None
    assert summary.untrained
    assert ClassifierFolder(place / "run").read_summary() == summary
    assert "commonest class" in summary.table()


def test_it_looks_at_the_object(finished):
    _, outcome, _ = finished
    summary = outcome.summary
    looks = summary.results["discrete-softmax"].looks
    assert summary.masks == sum(summary.tested)
    assert summary.area == pytest.approx((BLOB / SIDE) ** 2)
    assert summary.blind["even spread"]["mass"] == pytest.approx(summary.area, abs=1e-6)
    assert summary.results["average"].looks["mass"].mean == pytest.approx(summary.area, abs=1e-6)
    assert looks["mass"].mean > 2 * summary.area
    assert looks["mass"].low <= looks["mass"].mean <= looks["mass"].high
    assert looks["pointing"].mean > summary.blind["centred blob"]["pointing"]


def test_the_report_names_pictures_and_pools(finished):
    _, outcome, _ = finished
    page = outcome.report.path.read_text(encoding="utf-8")
    assert outcome.summary.sentence in page
    assert "Where it looks" in page
    assert "centred blob" in page
    assert page.count("<article") == outcome.report.pictures == sum(outcome.summary.tested)
    assert "people said" not in page


def test_a_new_picture_is_classified(finished):
    place, _, _ = finished
    classifier = Classifier.load(place / "run")
    right = 0
    write_pictures(place / "new", 9, seed=5)
    for number in range(9):
        found = classifier.classify(read(place / "new" / COLOURS[number % 3] / f"{number}.png"))
        assert sum(score for _, score in found.top) == pytest.approx(1)
        assert float(found.weights.sum()) == pytest.approx(1, abs=1e-4)
        right += found.answer == COLOURS[number % 3]
    assert right >= 6
    even = Classifier.load(place / "run", "average").classify(torch.zeros(3, 9, 9, dtype=torch.uint8))
    assert even.entropy == pytest.approx(0, abs=1e-4)
    with pytest.raises(Problem, match=r"has no pool discrete-tvmax\. It has average, discrete-softmax"):
        Classifier.load(place / "run", "discrete-tvmax")


def test_again_is_the_same_and_trains_nothing(finished):
    place, outcome, _ = finished
    before = ClassifierFolder(place / "run").head("average").latest().weights()
    again, _ = train(place / "squares", place / "run", masks=place / "masks")
    after = ClassifierFolder(place / "run").head("average").latest().weights()
    assert again.summary == outcome.summary
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_another_pool_takes_the_features_from_there(finished, tmp_path, monkeypatch):
    place, _, _ = finished
    shutil.copytree(place / "run", tmp_path / "run")
    features = (tmp_path / "run" / "features" / "features.bin").stat().st_mtime_ns
    settings = ClassifierSettings(pool="continuous-sparsemax", epochs=60, batch_size=8, lr=0.01)
    outcome, said = train(place / "squares", tmp_path / "run", settings, backbone=None, size=None)
    assert list(outcome.summary.results) == ["continuous-sparsemax", "discrete-softmax", "average"]
    assert (tmp_path / "run" / "features" / "features.bin").stat().st_mtime_ns == features
    assert Classifier.load(tmp_path / "run").head.pool.name == "continuous-sparsemax"
    assert "random weights" in said  # the choice of the first start holds


@pytest.mark.parametrize("pool", ["average", "non-local", "discrete-tvmax", "mixture-2", "discrete-entmax-1.3"])
def test_every_pool_trains(pool, tmp_path):
    write_pictures(tmp_path / "squares", 12)
    settings = ClassifierSettings(pool=pool, epochs=2, batch_size=4, hidden=8)
    outcome, _ = train(tmp_path / "squares", tmp_path / "run", settings)
    assert set(outcome.summary.results) == {pool, "average"}
    found = Classifier.load(tmp_path / "run").classify(torch.zeros(3, 20, 30, dtype=torch.uint8))
    assert found.attention == pool
    assert json.loads(json.dumps(found.to_json()))["attention"] == pool


def test_other_pictures_are_refused_and_nothing_is_changed(finished, tmp_path):
    place, _, _ = finished
    write_pictures(tmp_path / "others", 9, seed=3)
    before = content_of(place / "run")
    with pytest.raises(Problem, match=r"was made from 36 pictures of .*squares.*start over: --fresh"):
        train(tmp_path / "others", place / "run")
    assert content_of(place / "run") == before


def test_fresh_starts_over(tmp_path):
    write_pictures(tmp_path / "a", 9)
    write_pictures(tmp_path / "b", 12, seed=1)
    short = ClassifierSettings(epochs=1)
    train(tmp_path / "a", tmp_path / "run", short)
    fresh = Running(progress=False, log="none", resume=False)
    outcome, _ = train(tmp_path / "b", tmp_path / "run", short, running=fresh)
    assert outcome.summary.learned + sum(outcome.summary.tested) == 12


def test_a_run_of_another_command_is_refused(tmp_path):
    write_pictures(tmp_path / "squares", 9)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"kind": "vqa", "format": 1}')
    for resume in (True, False):
        with pytest.raises(Problem, match="has a run of another command"):
            train(tmp_path / "squares", tmp_path / "run", running=Running(progress=False, resume=resume))
    assert os.listdir(tmp_path / "run") == ["config.json"]


def test_broken_pictures_are_named_and_skipped(tmp_path):
    write_pictures(tmp_path / "squares", 18)
    (tmp_path / "squares" / "red" / "0.png").write_bytes(b"no picture")
    outcome, said = train(tmp_path / "squares", tmp_path / "run", ClassifierSettings(epochs=1))
    assert "Skipped: 1 picture that cannot be read" in said
    assert outcome.summary.learned + sum(outcome.summary.tested) == 17
    assert any("0.png" in sentence for sentence in outcome.summary.left_out)
    assert "0.png" in (tmp_path / "run" / "broken.txt").read_text()


def test_copies_are_not_tested_on(tmp_path):
    write_pictures(tmp_path / "all" / "train", 18)
    write_pictures(tmp_path / "all" / "val", 6, seed=4)
    shutil.copy(tmp_path / "all" / "train" / "red" / "0.png", tmp_path / "all" / "val" / "red" / "copy.png")
    outcome, said = train(tmp_path / "all", tmp_path / "run", ClassifierSettings(epochs=1))
    assert "val/red/copy.png has the content of train/red/0.png" in said
    assert outcome.summary.learned == 18
    assert sum(outcome.summary.tested) == 6
    assert not outcome.summary.drawn


def test_masks_of_two_pictures_are_refused_before_anything_is_made(tmp_path):
    write_pictures(tmp_path / "squares", 18)
    (tmp_path / "masks").mkdir()
    for colour in COLOURS[:2]:
        shutil.copy(tmp_path / "squares" / "red" / "0.png", tmp_path / "squares" / colour / "same.png")
    Image.new("L", (4, 4), 255).save(tmp_path / "masks" / "same.png")
    with pytest.raises(Problem, match=r"has no mask for any held-out picture|would be the mask of"):
        train(tmp_path / "squares", tmp_path / "run", ClassifierSettings(held_out=0.9), masks=tmp_path / "masks")
    assert not (tmp_path / "run").exists()


def test_a_mistyped_path_changes_nothing_on_disk(tmp_path):
    write_pictures(tmp_path / "squares", 9)
    for option in ("masks", "backbone", "test"):
        with pytest.raises(Problem):
            train(tmp_path / "squares", tmp_path / "run", **{option: str(tmp_path / "absent")})
    with pytest.raises(Problem, match="does not exist"):
        train(tmp_path / "absent", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_little_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    write_pictures(tmp_path / "squares", 9)
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("usage", (), {"free": 1_000_000})())
    with pytest.raises(Problem, match=r"has 1 MB free, and about \d+ MB are needed"):
        train(tmp_path / "squares", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pictures_in_memory(tmp_path):
    light = torch.tensor([0.0, 0.7]).repeat(20).view(-1, 1, 1, 1) + 0.3 * torch.rand(40, 3, 8, 8)
    outcome, _ = train(Arrays(light, [0, 1] * 20, ["dark", "light"]), tmp_path / "run", size=16)
    assert outcome.summary.accuracy().share == 1
    assert outcome.summary.classes == ("dark", "light")


def run_command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["regard", "classify", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        regard.cli.main()
    return ended.value.code, capsys.readouterr()


def test_the_command(finished, tmp_path, monkeypatch, capsys):
    place, _, _ = finished
    monkeypatch.chdir(tmp_path)
    picture = place / "squares" / "red" / "0.png"
    code, said = run_command(monkeypatch, capsys, place / "run", picture, "--picture", "looked.png")
    assert not code
    assert said.out.splitlines()[0] in COLOURS
    assert "discrete-softmax: looks most at" in said.out
    assert (tmp_path / "looked.png").stat().st_size > 10_000
    code, said = run_command(monkeypatch, capsys, place / "run", picture, place / "squares" / "blue", "--json")
    assert not code
    assert len([json.loads(line) for line in said.out.splitlines()]) == 13
    write_pictures(tmp_path / "squares", 12)
    options = ["--backbone", "small", "--epochs", "1", "--no-progress", "--pool", "discrete-sparsemax"]
    code, said = run_command(monkeypatch, capsys, "squares", *options)
    assert not code
    assert "regard classify out/squares-classes PICTURE" in said.out
    assert (tmp_path / "out" / "squares-classes" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["RUN"], "is a classifier. Name pictures to classify with it"),
        (["RUN", "RUN/absent.png"], "absent.png"),
        (["RUN", "PICTURE", "--epochs", "3"], "--epochs is for training"),
        (["RUN", "PICTURE", "--masks", "RUN"], "--masks is for training"),
        (["RUN", "PICTURE", "--pool", "maximum"], "expected one of average, non-local, discrete-softmax"),
        (["RUN", "PICTURE", "--picture", "PICTURE"], "is the picture itself"),
        (["RUN", "PICTURE", "--picture", "looked.gif"], "a drawing cannot be written as"),
        (["SQUARES", "--json"], "are for new pictures"),
        (["SQUARES", "--pool", "maximum"], "expected one of average, non-local, discrete-softmax"),
        (["SQUARES", "--held-out", "1.5"], "held_out: got 1.5"),
        (["SQUARES", "PICTURE"], "has no classifier"),
    ],
)
def test_errors_are_one_line(finished, tmp_path, monkeypatch, capsys, arguments, said):
    place, _, _ = finished
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DEBUG", raising=False)
    names = {"RUN": place / "run", "SQUARES": place / "squares", "PICTURE": place / "squares" / "red" / "0.png"}
    words = [str(names.get(word, word)).replace("RUN", str(place / "run")) for word in arguments]
    code, printed = run_command(monkeypatch, capsys, *words)
    message = f"{code if isinstance(code, str) else ''}{printed.err}".strip()
    assert said in message
    assert "\n" not in message
    assert os.listdir(tmp_path) == []
