"""Whole runs on small pictures: they learn, resume bit for bit, pass over broken files, and say what is wrong."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from reference import swav as reference

from regard._problem import Problem
from regard.backbones import load_backbone
from regard.cli import main
from regard.pictures import Arrays
from regard.swav import (
    PRESETS,
    CollapseWarning,
    Settings,
    Swav,
    evaluate_backbone,
    load_pretraining,
    preset,
    pretrain,
    run,
    sheet,
)
from regard.swav._pretrain import before, build
from regard.training import FitSettings, Running, fit, latest

QUIET = Running(progress=False)

TINY = {
    "backbone_options": {"widths": [4, 8], "depths": [1, 1]},
    "size": 12,
    "local_size": 8,
    "local": 1,
    "canvas": 12,
    "hidden": 16,
    "dim": 8,
    "prototypes": 6,
    "batch_size": 8,
    "freeze": 2,
    "warmup": 2,
    "queue": 16,
}


def pictures(n=40, side=12):
    """Two kinds: stripes that lie and stripes that stand."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 1, side, generator=g).expand(n, 3, side, side).clone()
    labels = [i % 2 for i in range(n)]
    x[1::2] = x[1::2].mT
    return Arrays(x, labels)


def go(out, steps=11, **options):
    options = {"progress": False, "checkpoint_every": 4, "preset_name": "small", **TINY} | options
    running = Running(**{f.name: options.pop(f.name) for f in fields(Running) if f.name in options})
    return run(pictures(), out=out, steps=steps, running=running, **options)


def flags(settings):
    """Settings as options of `regard pretrain`."""
    return [f"--{k.replace('_', '-')}={json.dumps(v) if isinstance(v, dict) else v}" for k, v in settings.items()]


def same(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


def test_a_run_resumes_with_its_queue(tmp_path):
    whole = go(tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "parts", after_step=lambda step: 1 / (step - 7))
    assert latest(tmp_path / "parts").step == 4
    assert latest(tmp_path / "parts").state()["extra"]["queue"]["rows"].shape == (2, 16, 8)
    parts = go(tmp_path / "parts")
    assert parts.fitted.resumed == 4
    assert same(whole.task, parts.task)
    assert torch.equal(whole.task.queue.rows, parts.task.queue.rows)
    assert same(load_backbone(whole.backbone), load_pretraining(tmp_path / "whole").backbone)


def test_prototypes_are_unit_and_frozen_at_first(tmp_path):
    seen = {}
    settings = preset("small", steps=6, **(TINY | {"freeze": 3}))
    first = build(settings).prototypes.weight.detach().clone()
    held = []

    def keep(step):
        seen[step] = held[0].prototypes.weight.detach().clone()

    from regard.swav import Canvases

    held.append(build(settings))
    computed = FitSettings(steps=6, batch_size=8)
    fit(held[0], Canvases(pictures(), 12), computed, out=tmp_path, running=QUIET, after_step=keep)
    assert torch.allclose(seen[3], first, atol=1e-6)
    assert not torch.allclose(seen[4], first, atol=1e-5)
    assert torch.allclose(seen[6].norm(dim=-1), torch.ones(6))


def test_the_share_of_each_prototype_is_logged(tmp_path):
    with pytest.raises(ZeroDivisionError):
        go(tmp_path, log_every=1, after_step=lambda step: 1 / (step - 7))
    go(tmp_path, log_every=1)
    texts = [(tmp_path / f"{name}.csv").read_text() for name in ("log", "shares")]
    log, shares = ([*csv.DictReader(text.splitlines())] for text in texts)
    assert [row.pop("step") for row in shares] == [row["step"] for row in log] == [str(i) for i in range(1, 12)]
    for row, found in zip(log, shares, strict=True):
        numbers = [float(n) for n in found.values()]
        assert list(found) == [str(i) for i in range(6)]
        assert sum(numbers) == pytest.approx(6, rel=1e-4)
        assert (min(numbers), max(numbers)) == (float(row["share_least"]), float(row["share_most"]))
    # Of a long run about a hundred rows: here every second step.
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "long", steps=250, log_every=1, after_step=lambda step: 1 / (step - 60))
    assert len((tmp_path / "long" / "shares.csv").read_text().splitlines()) - 1 == 30


def test_accumulated_batches_and_lars_and_bfloat16(tmp_path):
    for i, options in enumerate(({"accumulate": 2}, {"optimizer": "lars"}, {"precision": "bf16-mixed"})):
        task = go(tmp_path / str(i), steps=4, **options).task
        assert all(p.isfinite().all() for p in task.parameters())


def test_a_transformers_backbone_with_non_local_blocks(tmp_path):
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "theirs")
    options = {"backbone": str(tmp_path / "theirs"), "backbone_options": {}, "nonlocal_after": ((1, 0),), "size": 24}
    made = go(tmp_path / "out", steps=4, **options)
    start = build(made.task.settings).backbone
    moved = {
        name
        for (name, new), old in zip(made.task.backbone.named_parameters(), start.parameters(), strict=True)
        if not torch.equal(new, old)
    }
    assert any("theta" in name for name in moved), sorted(moved)
    assert same(load_backbone(made.backbone), made.task.backbone)


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (pictures().pictures, {"eps": 0.01}),
        (pictures().pictures[:4], {"prototypes": 10}),
        (pictures().pictures[:1].expand(100, -1, -1, -1), {}),
        (torch.zeros(20, 3, 12, 12, dtype=torch.uint8), {"running": Running(progress=False, precision="bf16-mixed")}),
    ],
)
def test_edge_cases_have_no_nan(tmp_path, x, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        made = run(x, out=tmp_path, steps=12, **(TINY | {"running": QUIET} | options))
    assert all(t.isfinite().all() for t in made.task.state_dict().values())


def test_too_many_prototypes_are_said_before_the_first_step(tmp_path):
    with pytest.warns(CollapseWarning, match="share 50 prototypes"):
        go(tmp_path, steps=1, prototypes=50)


def test_it_learns_what_differs(tmp_path):
    made = go(tmp_path, steps=60, queue=0)
    found = evaluate_backbone(made.task.backbone, pictures(200))
    assert found.knn.share > 0.9
    assert found.train == 150
    assert "the same untrained" in found.table()
    assert sheet(made.task, pictures(), tmp_path / "sheet.png", rows=4).stat().st_size > 1000


def folder(path, good=1000, bad=20):
    path.mkdir()
    for i in range(good):
        place = path / ("even" if i % 2 == 0 else "odd")
        place.mkdir(exist_ok=True)
        Image.new("RGB", (14, 10), (i % 256, 100 * (i % 2), 50)).save(place / f"{i:04d}.png")
    for i in range(bad):
        whole = (path / "odd" / f"{2 * i + 1:04d}.png").read_bytes()
        (path / "odd" / f"bad{i:02d}.png").write_bytes(whole[: len(whole) // 2] if i % 2 else b"no picture")
    return path


def test_twenty_broken_files_among_a_thousand(tmp_path):
    # 1,020 pictures in 17 batches of 60: every file is asked for once an epoch.
    made = run(
        folder(tmp_path / "p"),
        out=tmp_path / "out",
        steps=17,
        running=QUIET,
        **(TINY | {"batch_size": 60, "queue": 0}),
    )
    assert len(made.broken) == 20
    assert all("bad" in name for name in made.broken)
    listed = (tmp_path / "out" / "broken.txt").read_text().splitlines()
    assert len(listed) == 20


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: (exit code or message, what it printed)."""

    def run_it(*arguments):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with warnings.catch_warnings(), pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, capsys.readouterr().out

    return run_it


def test_the_commands(tmp_path, command):
    source, out = folder(tmp_path / "p", good=60, bad=2), tmp_path / "out"
    sets = flags({name: value for name, value in TINY.items() if name != "batch_size"})
    code, said = command("pretrain", source, "--out", out, "--steps", 8, "--batch-size", 8, *sets)
    assert code in (0, None)
    for words in ("62 pictures, 2 classes", "2 broken files skipped", "linear probe", "prototypes.png", "Backbone:"):
        assert words in said
    _, evaluated = command("evaluate", out, source, "--out", tmp_path / "e.json")
    assert "raw pixels" in evaluated
    assert 0 <= json.loads((tmp_path / "e.json").read_text())["knn"]["right"] <= 15
    _, exported = command("export", "backbone", out, "--out", tmp_path / "b")
    assert "8 features" in exported
    assert same(load_backbone(tmp_path / "b"), load_backbone(out))


def test_half_precision_from_the_command_line(tmp_path, command):
    source, out = folder(tmp_path / "p", good=60, bad=0), tmp_path / "out"
    sets = flags({name: value for name, value in TINY.items() if name != "batch_size"})
    given = ["--precision", "bf16-mixed", "--steps", 30, "--batch-size", 8, "--log-every", 1]
    assert command("pretrain", source, "--out", out, *given, *sets)[0] in (0, None)
    with (out / "log.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert len(rows) == 30
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert sum(row["loss"] for row in rows[-5:]) < sum(row["loss"] for row in rows[:5])
    assert all(t.isfinite().all() for t in load_backbone(out).state_dict().values())


def test_train_takes_the_same_options_for_lightning(command):
    options = ["--devices", "auto", "--num-nodes", "2", "--strategy", "ddp", "--precision", "bf16-mixed"]
    said, _ = command("train", "nowhere", *options)
    assert "nowhere" in said  # past the options: an unknown one would be an error of its own
    assert command("train", "nowhere", "--num-nodes", "0")[0] == 2


def test_errors_are_one_line(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"kind": "soup"}')
    for arguments, words in (
        (("pretrain", tmp_path / "empty"), "holds no pictures"),
        (("pretrain", "--preset", "huge"), "no preset"),
        (("pretrain", "--flip", "2"), "flip is a probability"),
        (("pretrain", "--precision", "16-mixed", "--steps", 1), "16-mixed needs a GPU"),
        (("pretrain", "--precision", "17", "--steps", 1), "'17' is invalid"),
        (("pretrain", "--strategy", "soup", "--steps", 1), "invalid strategy"),
        (("evaluate", tmp_path / "odd"), "kind 'soup'"),
        (("export", "backbone", tmp_path / "gone"), "not a folder"),
    ):
        said, _ = command(*arguments)
        assert words in said
        assert "\n" not in said


def test_checkpoints_that_cannot_serve(tmp_path):
    go(tmp_path, steps=4)
    with pytest.raises(Problem, match="another run"):
        go(tmp_path, steps=8, dim=4)
    weights = latest(tmp_path).folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(Problem, match="corrupt"):
        go(tmp_path, steps=8)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_nothing_to_complain_of(name):
    assert before(preset(name), preset(name).batch_size) == []


def test_settings_are_checked():
    for name, value in {"eps": 0.0, "prototypes": 0, "flip": 2.0, "scale": (0.5, 0.2), "optimizer": "sgd"}.items():
        with pytest.raises(Problem, match=name):
            preset("small", **{name: value})
    assert isinstance(preset("photos"), Settings)
    with pytest.raises(Problem, match="no setting"):
        pretrain(torch.zeros(4, 3, 8, 8), out="nowhere", colour=3)


def test_other_pictures_are_refused_and_fresh_starts_over(tmp_path):
    from PIL import Image

    def write(name, colours):
        (tmp_path / name).mkdir()
        for i, colour in enumerate(colours):
            Image.new("RGB", (16, 16), colour).save(tmp_path / name / f"{i}.bmp")
        return tmp_path / name

    one, two = write("one", ["red", "green", "blue", "white"] * 2), write("two", ["red", "green", "blue", "black"] * 2)
    options = TINY | {"batch_size": 8, "prototypes": 4, "queue": 0, "steps": 2}
    first = run(one, out=tmp_path / "run", running=QUIET, **options)
    assert run(one, out=tmp_path / "run", running=QUIET, **options).fitted.steps == 0
    copied = shutil.copytree(one, tmp_path / "copy", copy_function=shutil.copy)  # the same content, at another time
    assert run(copied, out=tmp_path / "run", running=QUIET, **options).fitted.steps == 0
    told = r"has a run trained on 8 pictures of .*copy, digest \w+, and this is 8 pictures of .*two, digest .*--fresh"
    with pytest.raises(Problem, match=told):
        run(two, out=tmp_path / "run", running=QUIET, **options)
    again = run(two, out=tmp_path / "run", running=replace(QUIET, resume=False), **options)
    assert again.fitted.steps == 2
    assert not same(first.task, again.task)


def test_names_that_are_not_text_end_no_run(tmp_path):
    from PIL import Image

    for i in range(8):
        Image.new("RGB", (16, 16), (30 * i, 0, 0)).save(tmp_path / f"{i}.png")
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes(b"broken")
    options = TINY | {"batch_size": 9, "prototypes": 4, "queue": 0, "steps": 2}
    done = run(tmp_path, out=tmp_path / "run", running=QUIET, **options)
    assert list(done.broken) == [str(odd)]
    assert "caf\\udce9.png" in done.folder.broken.read_text(encoding="utf-8")


def test_killed_runs_give_the_same_weights(tmp_path):
    """kill -9 in the middle of an epoch of 5 steps; the tests of training kill while a checkpoint is written."""
    whole = go(tmp_path / "whole", steps=30)
    code = (
        "import sys, time, torch; sys.path.insert(0, sys.argv[2]); torch.set_num_threads(1)\n"
        "from swav.test_pretrain import go\n"
        "go(sys.argv[1], steps=30, after_step=lambda step: time.sleep(0.05))"
    )
    out, tests = tmp_path / "killed", Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(tests.parent / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code, str(out), str(tests)], env=environment)
    deadline = time.monotonic() + 120
    while latest(out) is None or latest(out).step < 8:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.07)  # a step or two past the checkpoint
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 8 <= latest(out).step < 30
    parts = go(out, steps=30)
    assert parts.fitted.resumed >= 8
    assert same(whole.task, parts.task)


def test_after_windows_the_norms_know_whole_pictures(tmp_path):
    """The statistics of the first norm are those of whole pictures, not of the windows that it learned from."""
    half = torch.zeros(40, 3, 24, 24)
    half[:, :, 8:16, 8:16] = torch.rand(40, 3, 8, 8)  # lively in the middle, black around
    options = TINY | {"canvas": 24, "window": (0.1, 0.15), "tries": 4, "local": 0, "queue": 0}
    done = run(Arrays(half), out=tmp_path, steps=2, preset_name="small", running=QUIET, **options)
    found = load_backbone(done.backbone)
    assert found.preparation.size == 24
    norm = next(m for m in found.modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    norm.register_forward_pre_hook(lambda _, x: seen.append(x[0].mean((0, 2, 3))))
    found.pooled(found.prepare((255 * half).byte()))
    torch.testing.assert_close(norm.running_mean, seen[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("start", "rows"), [({"queue_epoch": 1}, [0] * 5 + [8, 16]), ({"queue_step": 3}, [0] * 3 + [8, 16])]
)
def test_the_queue_starts_by_epoch_and_by_step(tmp_path, monkeypatch, start, rows):
    """40 pictures are 5 batches of 8: the first to be stored is that of step 5, or of step 3."""
    found = []
    plain = Swav.after_update

    def look(task, step):
        found.append(task.queue.rows.shape[1])
        plain(task, step)

    monkeypatch.setattr(Swav, "after_update", look)
    go(tmp_path, steps=len(rows), **start)
    assert found == rows


def test_a_resumed_run_knows_its_step(tmp_path):
    whole = go(tmp_path / "whole", queue_step=6)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "parts", queue_step=6, after_step=lambda step: 1 / (step - 7))
    parts = go(tmp_path / "parts", queue_step=6)
    assert parts.fitted.resumed == 4
    assert whole.task.queue.rows.shape[1] == 16
    assert torch.equal(whole.task.queue.rows, parts.task.queue.rows)


def test_the_published_settings_are_those_of_the_presets(tmp_path):
    """The learning rate of every step of a shortened `photos-large`, from its log, and the two presets' numbers."""
    large, small = preset("photos-large"), preset("photos")
    assert (large.lr, large.final_lr, large.warmup_start, large.freeze, large.queue) == (4.8, 0.0048, 0.3, 313, 0)
    assert (small.lr, small.final_lr, small.warmup, small.queue, small.queue_epoch) == (0.6, 0.0006, 0, 3840, 15)
    assert large.optimizer == small.optimizer == "larc"
    rates = {name: getattr(large, name) for name in ("lr", "final_lr", "warmup_start", "weight_decay", "optimizer")}
    go(tmp_path, steps=20, log_every=1, **(rates | {"warmup": 5}))
    with (tmp_path / "log.csv").open() as file:
        logged = [float(row["lr"]) for row in csv.DictReader(file)]
    assert logged == pytest.approx(reference.learning_rates(20, 5, 4.8, 0.3, 0.0048))
    for changes, words in (
        ({"final_lr": 1.0}, "final_lr"),
        ({"warmup_start": 1.0}, "warmup_start"),
        ({"warmup_start": 1e-4, "warmup": 0}, "there is none"),
    ):
        with pytest.raises(Problem, match=words):
            preset("small", **changes)


@pytest.mark.parametrize("optimizer", ["adamw", "lars", "larc"])
def test_groups_of_parameters(optimizer):
    changes = {"optimizer": optimizer, "weight_decay": 0.1, "lr": 0.5, "prototype_lr": 0.25}
    task = build(preset("small", **(TINY | changes)))
    groups = task.optimizer().param_groups
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(map(id, task.parameters()))
    by_parameter = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    prototypes = by_parameter.pop(id(task.prototypes.weight))
    assert prototypes == (0.125, 0.1 if optimizer == "larc" else 0.0)
    for p in task.parameters():
        if p is not task.prototypes.weight:
            assert by_parameter[id(p)] == (0.5, 0.1 if p.dim() > 1 or optimizer == "larc" else 0.0)
