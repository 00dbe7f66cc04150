"""Fine-tuning and linear evaluation: which labels are used, two learning rates, resuming, held-out pictures, errors."""

import copy
import json
import math
import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import cross_entropy

from regard._problem import Problem
from regard.backbones import fingerprint, load_backbone, make_backbone, save_backbone
from regard.cli import main
from regard.pictures import Arrays
from regard.swav import FineTune, FinetuneSettings, finetune, finetune_preset, load_finetuned
from regard.swav._crops import one_view, views
from regard.swav._finetune import falling
from regard.swav._finetune_settings import views_of
from regard.swav._finetune_task import LabelledCanvases
from regard.swav._labelled import Subset, open_labelled, stratified
from regard.training import Running, latest, mix

QUIET = Running(progress=False, checkpoint_every=3)


def tiny(seed=0):
    torch.manual_seed(seed)
    return make_backbone("small", widths=[4, 8], depths=[1, 1], size=12)


def stripes(n=60, side=12, seed=0):
    """Two kinds: stripes that lie and stripes that stand."""
    x = torch.rand(n, 1, 1, side, generator=torch.Generator().manual_seed(seed)).expand(n, 3, side, side).clone()
    x[1::2] = x[1::2].mT
    return Arrays(x, [i % 2 for i in range(n)], ["lying", "standing"])


def same(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.01, 1), st.integers(0, 5))
def test_a_share_of_each_class(labels, share, seed):
    chosen = stratified(labels, range(len(labels)), share, seed, 1, least=1)
    assert chosen == sorted(set(chosen))
    for label in set(labels):
        count, taken = labels.count(label), sum(labels[i] == label for i in chosen)
        assert taken == max(1, round(share * count))
    held_out = stratified(labels, range(len(labels)), share, seed, 2, spare=1)
    for label in set(labels):
        count, taken = labels.count(label), sum(labels[i] == label for i in held_out)
        assert taken == min(max(1, round(share * count)), count - 1)


def test_labels_are_drawn_by_the_seed_and_never_from_what_is_held_out():
    labelled = open_labelled(stripes(100))
    assert labelled.drawn
    one, same_one, other = (labelled.split(0.2, 0.1, seed) for seed in (0, 0, 1))
    assert one == same_one
    assert one.learn != other.learn
    assert (len(one.test), one.labelled, len(one.learn)) == (20, 80, 8)
    assert not set(one.learn) & set(one.test)
    # More labels keep those that are held out.
    assert labelled.split(0.2, 1.0, 0).test == one.test
    assert len(labelled.split(0.2, 0.001, 0).learn) == 2


def test_the_step_is_sgd_with_two_rates_by_hand():
    settings = finetune_preset("whole", lr=0.1, lr_head=0.5, weight_decay=0.01, flip=0.0, scale=(1.0, 1.0))
    backbone = tiny()
    task = FineTune(backbone, ["a", "b"], settings)
    copied = copy.deepcopy(task)
    batch = LabelledCanvases(Subset(stripes(), range(8)), 12).batch(list(range(8)), epoch=0)
    optimizer = task.optimizer()
    speeds = [torch.zeros_like(p) for p in copied.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        loss, numbers = task.loss(batch)
        loss.backward()
        optimizer.step()
        crops = views_of(settings, 12)
        seen = views(batch["pictures"], batch["aspect"], batch["index"], crops, mix(0, 0))[0][:8]
        scores = copied.head(copied.backbone.pooled(copied.backbone.preparation.normalise(seen)))
        expected = cross_entropy(scores, torch.tensor([0, 1] * 4))
        torch.testing.assert_close(loss, expected)
        assert float(numbers["accuracy"]) == (scores.argmax(-1) == torch.tensor([0, 1] * 4)).float().mean()
        gradients = torch.autograd.grad(expected, list(copied.parameters()))
        with torch.no_grad():
            for (name, p), g, speed in zip(copied.named_parameters(), gradients, speeds, strict=True):
                speed.mul_(0.9).add_(g + 0.01 * p)
                p.sub_((0.5 if name.startswith("head") else 0.1) * speed)
    for p, q in zip(task.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_one_view_is_the_first_of_all_views():
    batch = LabelledCanvases(Subset(stripes(), range(6)), 12).batch([0, 3, 5], epoch=2)
    crops = views_of(FinetuneSettings(), 10)
    arguments = (batch["pictures"], batch["aspect"], batch["index"], crops, 7)
    assert torch.equal(one_view(*arguments), views(*arguments)[0][:3])


def test_published_settings():
    assert (finetune_preset("10-percent").lr, finetune_preset("10-percent").lr_head) == (0.01, 0.2)
    assert (finetune_preset("1-percent").lr, finetune_preset("1-percent").lr_head) == (0.02, 5.0)
    factor = falling(20, per_epoch=4)
    by_epoch = [1.0] * 12 + [0.2] * 4 + [0.04] * 4
    assert [factor(step) for step in range(80)] == pytest.approx([by_epoch[step // 4] for step in range(80)])
    linear = finetune_preset("linear")
    assert (linear.frozen, linear.lr_head, linear.schedule, linear.epochs) == (True, 0.3, "cosine", 100)


def test_it_learns_and_a_frozen_backbone_does_not_change(tmp_path):
    reddish = stripes(100).pictures.float() / 255 * torch.tensor([1.0, 0.5]).repeat(50).view(-1, 1, 1, 1)
    coloured = Arrays(reddish, [i % 2 for i in range(100)])  # what random features tell apart
    for preset, data, changes in (("whole", stripes(100), {}), ("linear", coloured, {"epochs": 20, "lr_head": 3.0})):
        backbone = tiny()
        before = fingerprint(backbone)
        done = finetune(backbone, data, out=tmp_path / preset, preset=preset, batch_size=16, running=QUIET, **changes)
        assert done.accuracy.share > 0.85
        assert done.accuracy.count == 20
        assert done.commonest.share == 0.5
        assert (fingerprint(backbone) == before) == (preset == "linear")
        assert fingerprint(load_backbone(tmp_path / preset)) == fingerprint(done.task.backbone)
        loaded = load_finetuned(tmp_path / preset)
        assert same(loaded, done.task)
        x = data.pictures[done.split.test]
        right = (loaded.probabilities(x).argmax(-1) == torch.tensor(done.split.test) % 2).sum()
        assert int(right) == done.accuracy.right
        assert json.loads((tmp_path / preset / "evaluation.json").read_text())["accuracy"] == done.accuracy.share


def test_a_run_resumes_bit_for_bit_with_its_split(tmp_path, monkeypatch):
    options = {"epochs": 4, "batch_size": 8, "labels": 0.5, "running": QUIET}
    whole = finetune(tiny(), stripes(), out=tmp_path / "whole", **options)
    plain = FineTune.after_update
    with monkeypatch.context() as patched:
        patched.setattr(FineTune, "after_update", lambda self, step: 1 / (step - 7))
        with pytest.raises(ZeroDivisionError):
            finetune(tiny(), stripes(), out=tmp_path / "parts", **options)
    assert FineTune.after_update is plain
    assert latest(tmp_path / "parts").step == 6
    # The stored split is what counts, whatever would be drawn now.
    monkeypatch.setattr("regard.swav._labelled.generator", lambda *keys: torch.Generator().manual_seed(99))
    parts = finetune(tiny(), stripes(), out=tmp_path / "parts", **options)
    assert parts.fitted.resumed == 6
    assert parts.split == whole.split
    assert same(whole.task, parts.task)
    with pytest.raises(Problem, match="origin"):
        finetune(tiny(seed=1), stripes(), out=tmp_path / "parts", **options)
    with pytest.raises(Problem, match="trained on"):
        finetune(tiny(), stripes(seed=1), out=tmp_path / "parts", **options)


def test_other_labels_are_other_data(tmp_path):
    options = {"epochs": 1, "batch_size": 8, "running": QUIET}
    finetune(tiny(), stripes(), out=tmp_path, **options)
    swapped = Arrays(stripes().pictures, [1 - i % 2 for i in range(60)], ["lying", "standing"])
    with pytest.raises(Problem, match="trained on"):
        finetune(tiny(), swapped, out=tmp_path, **options)


def write(folder, classes, count=6):
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (14, 10), (60 * k + 5 * i, 200 - 60 * k, 30)).save(folder / name / f"{i}.png")
    return folder


def test_folders_train_and_val_are_the_split(tmp_path):
    write(tmp_path / "train", ["cat", "dog", "owl"])
    write(tmp_path / "val", ["dog", "owl"], count=2)
    labelled = open_labelled(tmp_path)
    assert not labelled.drawn
    split = labelled.split(0.2, 1.0, 0)
    held_out = Subset(labelled.test, split.test, labelled.learn.classes)
    assert held_out.labels == [1, 1, 2, 2]  # numbers of the classes to learn from
    assert len(split.learn) == 18
    done = finetune(tiny(), tmp_path, out=tmp_path / "out", epochs=1, batch_size=6, running=QUIET)
    assert (done.accuracy.count, done.drawn) == (4, False)


def test_a_broken_picture_is_not_learned_under_another_label(tmp_path):
    write(tmp_path, ["cat", "dog"], count=3)
    (tmp_path / "cat" / "2.png").write_bytes(b"no picture")  # the next one that can be read is a dog
    labelled = open_labelled(tmp_path)
    data = LabelledCanvases(Subset(labelled.learn, range(6)), 12)
    batch = data.batch([2, 3], epoch=0)
    assert torch.equal(batch["pictures"][0], batch["pictures"][1])
    assert batch["labels"].tolist() == [1, 1]
    # Held out, it is left out.
    done = finetune(tiny(), tmp_path, test=tmp_path, out=tmp_path / "out", epochs=1, batch_size=6, running=QUIET)
    assert done.accuracy.count == 5
    assert "2.png" in done.folder.broken.read_text()


def test_what_cannot_be_learned_is_said(tmp_path):
    with pytest.raises(Problem, match="no labels"):
        open_labelled(torch.zeros(4, 3, 8, 8))
    with pytest.raises(Problem, match="all pictures are of the class 'lying'"):
        open_labelled(Arrays(torch.zeros(4, 3, 8, 8), [0] * 4, ["lying", "standing"]))
    write(tmp_path / "one", ["cat"])
    with pytest.raises(Problem, match="one: these pictures have no labels, or all the same one"):
        open_labelled(tmp_path / "one")
    with pytest.raises(Problem, match="does not exist"):
        open_labelled(tmp_path / "nowhere")
    write(tmp_path / "two" / "train", ["cat", "dog"])
    write(tmp_path / "two" / "val", ["cat", "emu", "owl"])
    with pytest.raises(Problem, match="lack: emu, owl"):
        open_labelled(tmp_path / "two")
    single = Arrays(torch.zeros(2, 3, 8, 8), [0, 1])
    with pytest.raises(Problem, match="no class has two pictures"):
        open_labelled(single).split(0.2, 1.0, 0)
    for name, value in {
        "labels": 0.0,
        "held_out": 1.0,
        "momentum": 1.0,
        "schedule": "soup",
        "scale": (0.5, 0.2),
    }.items():
        with pytest.raises(Problem, match=name):
            finetune_preset("whole", **{name: value})
    with pytest.raises(Problem, match="no preset"):
        finetune_preset("soup")
    with pytest.raises(Problem, match="no finished fine-tuning"):
        load_finetuned(tmp_path)


@pytest.fixture
def command(monkeypatch, capsys):
    def run_it(*arguments):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with warnings.catch_warnings(), pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, capsys.readouterr().out

    return run_it


def test_the_command(tmp_path, command):
    save_backbone(tiny(), tmp_path / "backbone")
    source = write(tmp_path / "labelled", ["cat", "dog", "owl"], count=10)
    given = ["--epochs", 2, "--batch-size", 8, "--out", tmp_path / "out", "--no-progress"]
    code, said = command("finetune", tmp_path / "backbone", source, *given, "--labels", 0.5)
    assert code in (0, None)
    assert "learned from 12 of 24 labelled pictures, 4 of each of 3 classes; 6 held out (drawn)" in said
    assert "commonest class     33.3 %" in said
    split = json.loads((tmp_path / "out" / "split.json").read_text())
    assert (len(split["learn"]), len(split["test"])) == (12, 6)
    assert math.isfinite(json.loads((tmp_path / "out" / "evaluation.json").read_text())["accuracy"])
    _, evaluated = command("evaluate", tmp_path / "out", source)
    assert "raw pixels" in evaluated
    for arguments, words in (
        ((tmp_path / "backbone", tmp_path / "nowhere"), "does not exist"),
        ((tmp_path / "nowhere", source), "not a folder with a backbone"),
        ((tmp_path / "backbone", source, "--preset", "soup"), "no preset"),
        ((tmp_path / "backbone", source, "--labels", 2), "labels is a share"),
    ):
        said, _ = command("finetune", *arguments, "--out", tmp_path / "wrong")
        assert words in said
        assert "\n" not in said
