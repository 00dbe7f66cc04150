"""Assignments of the whole set: k-means and Sinkhorn once per epoch, stored embeddings, one process and two."""

import itertools
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from reference import swav as reference
from swav.test_pretrain import TINY, go, pictures, same
from swav.test_processes import losses
from torch.nn.functional import normalize

from regard._problem import Problem
from regard.swav import Bank, Canvases, assigned_loss, codes, load_pretraining, preset, spherical_kmeans
from regard.swav._bank import first_centroids
from regard.swav._pretrain import build
from regard.training import FitSettings, Running, fit, latest

WHOLE_SET = ("kmeans", "sela")
MOMENTUM = {"optimizer": "lars", "lr": 0.05}


def unit(n, dim=6, seed=0):
    return normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


@given(st.integers(3, 25), st.integers(1, 5), st.integers(0, 4), st.integers(0, 50))
def test_kmeans_is_the_slow_one(n, k, iterations, seed):
    rows = unit(n, seed=seed)
    first = rows[:k] if k <= n else unit(k, seed=seed + 1)
    centroids, labels = spherical_kmeans(rows, first, iterations)
    slow, expected = reference.spherical_kmeans(rows, first, iterations)
    torch.testing.assert_close(centroids, slow)
    assert labels.tolist() == expected


def test_kmeans_finds_what_is_apart_and_never_gets_worse():
    middle = torch.eye(4, dtype=torch.float64)
    rows = normalize(middle.repeat(10, 1) + 0.1 * unit(40, 4), dim=-1)
    _, labels = spherical_kmeans(rows, rows[:4], 10)
    assert torch.equal(labels, torch.arange(4).repeat(10))
    rows, first = unit(60, 3), unit(7, 3, seed=1)
    fit = [(rows * c[labels]).sum() for c, labels in (spherical_kmeans(rows, first, i) for i in range(8))]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(fit))
    assert fit[-1] > fit[0] + 1


def test_a_centroid_without_rows_stays_and_opposite_rows_give_no_nan():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    centroids, _ = spherical_kmeans(rows, torch.tensor([[0.0, 1.0], [0.0, -1.0]]), 3)
    assert torch.equal(centroids, torch.tensor([[0.0, 1.0], [0.0, -1.0]]))


@pytest.mark.parametrize("known", [5, 2, 0])
def test_the_loss_to_assignments_is_the_double_loop(known):
    scores = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([3, 0, 6, 6, 1]).where(torch.arange(5) < known, -1)
    loss = assigned_loss(scores, labels, 0.2)
    assert float(loss.detach()) == pytest.approx(reference.assigned_loss(scores.detach(), labels, 0.2))
    assert torch.autograd.gradcheck(lambda s: assigned_loss(s, labels, 0.2), scores)
    loss.backward()
    assert (scores.grad[:, known:] == 0).all()


def test_the_loss_refuses_what_does_not_fit():
    for labels in (torch.zeros(3, dtype=torch.int64), torch.zeros(2)):
        with pytest.raises(ValueError, match="labels"):
            assigned_loss(torch.zeros(2, 2, 4), labels)


def test_a_bank_keeps_what_came_and_forgets_it_once_taken():
    bank, z = Bank(3), unit(5, 3).float()
    bank.begin(8)
    bank.push(torch.tensor([6, 1]), z[:2])
    other = Bank(3)
    other.load(bank.state())
    for one in (bank, other):
        one.push(torch.tensor([4]), z[2:3])
        index, rows = one.take()
        assert index.tolist() == [6, 1, 4]
        assert torch.equal(rows, z[:3])
        assert len(one.take()[0]) == 0
        one.assign(3, index, torch.tensor([2, 0, 1]))
        assert one.labels.tolist() == [-1, 0, -1, -1, 1, -1, 2, -1]
    labels, code = bank.code(torch.tensor([6, 0]), 3)
    assert labels.tolist() == [2, -1]
    torch.testing.assert_close(code, torch.tensor([[0, 0, 1.0], [1 / 3, 1 / 3, 1 / 3]]))


def test_a_restored_bank_is_split(monkeypatch):
    bank = Bank(1)
    state = {"labels": torch.zeros(5, dtype=torch.int64), "epoch": 2, "residual": 0.0}
    bank.load({"index": torch.arange(5), "rows": torch.arange(5.0).view(5, 1), **state})
    monkeypatch.setattr("regard.swav._bank.world", lambda: (1, 2))
    assert bank.take()[0].tolist() == [3, 4]


def test_first_centroids_are_stored_samples_drawn_by_the_seed():
    rows, index = unit(6, 3), torch.tensor([9, 2, 4, 0, 7, 5])
    drawn = first_centroids(index, rows, 4, 10, seed=3)
    at = [(rows == row).all(-1).nonzero().item() for row in drawn]
    assert len(set(at)) == 4
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    assert torch.equal(first_centroids(index[order], rows[order], 4, 10, seed=3), drawn)
    assert not torch.equal(first_centroids(index, rows, 4, 10, seed=4), drawn)
    with pytest.raises(Problem, match="6 pictures cannot make 7 clusters"):
        first_centroids(index, rows, 7, 10, seed=3)


@pytest.mark.parametrize("kind", WHOLE_SET)
def test_assignments_are_those_of_the_whole_set(kind, tmp_path):
    """At the start of an epoch, from the embeddings that the last one stored: 40 pictures in 5 batches."""
    task = go(tmp_path, steps=10, codes=kind, queue=0).task
    assert task.bank.epoch == 1
    index, rows = task.bank.take()
    assert sorted(index.tolist()) == list(range(40))
    if kind == "sela":
        plan, _ = codes(task.scores(rows).detach(), task.settings.eps, task.settings.iterations)
        expected = reference.sinkhorn(task.scores(rows).detach(), task.settings.eps, task.settings.iterations)
        torch.testing.assert_close(plan.double(), expected, atol=1e-4, rtol=1e-3)
        task.bank.push(index, rows)
        task._assign(2, None)
        assert task.bank.labels[index].tolist() == expected.argmax(-1).tolist()
    else:
        task.bank.push(index, rows)
        task._assign(2, None)
        labels = (rows @ task.prototypes.weight.T).argmax(-1)
        assert torch.equal(task.bank.labels[index], labels)
        _, slow = reference.spherical_kmeans(rows, task.prototypes.weight.detach(), 0)
        assert labels.tolist() == slow


def test_centroids_change_once_an_epoch_and_by_no_gradient(tmp_path):
    seen = {}
    task = build(preset("small", **(TINY | {"codes": "kmeans", "queue": 0, "freeze": 0})))

    def keep(step):
        seen[step] = task.prototypes.weight.detach().clone()

    quiet = Running(progress=False)
    fit(task, Canvases(pictures(), 12), FitSettings(11, 8), out=tmp_path, running=quiet, after_step=keep)
    for step in range(2, 12):
        moved = not torch.allclose(seen[step], seen[step - 1], atol=1e-6)
        assert moved == (step in (6, 11)), step


@pytest.mark.parametrize("kind", WHOLE_SET)
def test_a_run_resumes_bit_for_bit_in_the_middle_of_an_epoch(kind, tmp_path):
    whole = go(tmp_path / "whole", steps=13, codes=kind, queue=0)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "parts", steps=13, codes=kind, queue=0, after_step=lambda step: 1 / (step - 9))
    stored = latest(tmp_path / "parts").state()["extra"]["bank"]
    assert latest(tmp_path / "parts").step == 8
    assert stored["rows"].shape == (24, 8)  # 3 batches of the second epoch
    parts = go(tmp_path / "parts", steps=13, codes=kind, queue=0)
    assert parts.fitted.resumed == 8
    assert same(whole.task, parts.task)
    assert torch.equal(whole.task.bank.labels, parts.task.bank.labels)
    assert torch.equal(whole.task.bank.take()[1], parts.task.bank.take()[1])
    assert load_pretraining(tmp_path / "whole").bank.epoch == 2


def worker(rank, processes, folder, kind):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{kind}", rank=rank, world_size=processes)
    options = {"devices": processes, "strategy": "ddp", "device": "cpu", "log_every": 1, "queue": 0}
    go(folder / f"two-{kind}", steps=8, codes=kind, **options, **MOMENTUM)
    dist.barrier()  # none leaves while another still hears from it
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", WHOLE_SET)
def test_two_processes_are_one(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    go(tmp_path / "one", steps=8, codes=kind, queue=0, log_every=1, **MOMENTUM)
    mp.spawn(worker, (2, tmp_path, kind), nprocs=2)
    one, two = losses(tmp_path / "one"), losses(tmp_path / f"two-{kind}")
    assert len(one) == len(two) == 8
    for a, b in zip(one, two, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-4)
        assert (b["share_least"], b["share_most"]) == pytest.approx((a["share_least"], a["share_most"]), abs=1e-3)
    first, second = (latest(tmp_path / n).state()["extra"]["bank"] for n in ("one", f"two-{kind}"))
    assert torch.equal(first["labels"], second["labels"])
    assert sorted(first["index"].tolist()) == sorted(second["index"].tolist())
    order = [state["index"].argsort() for state in (first, second)]
    torch.testing.assert_close(first["rows"][order[0]], second["rows"][order[1]], atol=1e-3, rtol=0)
    # One process can go on with what two have written.
    assert go(tmp_path / f"two-{kind}", steps=9, codes=kind, queue=0, **MOMENTUM).fitted.resumed == 8


def test_what_does_not_go_together_is_refused(tmp_path):
    with pytest.raises(Problem, match="queue"):
        preset("photos", codes="kmeans")
    with pytest.raises(Problem, match="codes must be one of"):
        preset("small", codes="soup")
    with pytest.raises(Problem, match="40 pictures per epoch cannot be assigned to 41 prototypes"):
        go(tmp_path, codes="sela", queue=0, prototypes=41)
