"""Random numbers without state, the order of samples, optimisers and schedules, against what they should be."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import swav as reference
from torch import nn

from regard._problem import Problem
from regard.training import LARC, LARS, Order, cosine, generator, groups, mix, uniform
from regard.training._progress import Progress


def test_uniform_looks_uniform_and_independent():
    u = uniform(3, torch.arange(20_000), 8).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert (u.mean(0) - 0.5).abs().max() < 0.01
    assert (u.var(0) - 1 / 12).abs().max() < 0.003
    both = torch.cat([u[:-1], u[1:]], 1)  # draws of one sample, and of neighbours
    assert (torch.corrcoef(both.T) - torch.eye(16)).abs().max() < 0.03
    counts = torch.histc(u.flatten(), 64, 0, 1)
    assert (counts / counts.mean() - 1).abs().max() < 0.1


def test_uniform_depends_on_the_sample_alone():
    index = torch.tensor([5, 0, 2**40, 5])
    u = uniform(1, index, 3)
    assert torch.equal(u[0], u[3])
    assert torch.equal(u[2:3], uniform(1, index[2:3], 3))
    assert not torch.equal(u[0], uniform(2, index[:1], 3)[0])
    assert torch.equal(u[:, :2], uniform(1, index, 2))


@given(st.lists(st.integers(-(2**63), 2**63), min_size=1, max_size=4))
def test_mix_is_a_seed(keys):
    assert 0 <= mix(*keys) < 2**63
    assert mix(*keys) != mix(*keys, 0)
    generator(*keys)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 3))
def test_an_epoch_has_each_sample_at_most_once(length, batch, epoch):
    order = Order(length, batch, seed=1)
    first = epoch * order.per_epoch
    batches = list(order.between(first, first + order.per_epoch))
    seen = [i for at, indices in batches for i in indices]
    assert {at for at, _ in batches} == {epoch}
    assert len(set(seen)) == len(seen) == order.per_epoch * order.batch_size
    assert length - len(seen) < order.batch_size
    assert Order(length, batch, seed=1).at(first) == batches[0]


def test_processes_share_a_batch():
    whole = Order(100, 12, seed=4)
    parts = [Order(100, 12, seed=4, rank=r, world=3) for r in range(3)]
    for number in (0, 5, 40):
        assert [i for part in parts for i in part.at(number)[1]] == whole.at(number)[1]
    assert whole.at(0)[1] != whole.at(whole.per_epoch)[1]
    with pytest.raises(Problem, match="shared by 3"):
        Order(2, 2, 0, 0, 3)


def test_cosine():
    factor = cosine(110, warmup=10, start=0.1, end=0.2)
    assert [factor(i) for i in range(10)] == pytest.approx([0.1 + 0.9 * (i + 1) / 10 for i in range(10)])
    assert [factor(i) for i in (10, 60, 110, 500)] == pytest.approx([1, 0.6, 0.2, 0.2])
    assert factor(35) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)


def test_the_published_learning_rates():
    lr, start, final = 4.8, 0.3, 0.0048
    factor = cosine(50, warmup=12, end=final / lr, first=start / lr)
    expected = reference.learning_rates(50, 12, lr, start, final)
    assert [lr * factor(step) for step in range(50)] == pytest.approx(expected)
    assert cosine(10, warmup=1, first=0.25)(0) == 0.25


def test_groups_leave_norms_and_biases_out():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    net[0].bias.requires_grad_(False)
    decayed, free = groups(net, 0.5)
    assert {id(p) for p in decayed["params"]} == {id(net[0].weight), id(net[3].weight)}
    assert {id(p) for p in free["params"]} == {id(net[1].weight), id(net[1].bias), id(net[3].bias)}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.5, 0.0)


def test_lars_against_its_formula():
    net = nn.Linear(5, 3).double()
    w, b = (p.detach().clone() for p in net.parameters())
    optimizer = LARS(groups(net, 0.1), lr=0.3, momentum=0.8, trust=0.02)
    mw, mb = torch.zeros_like(w), torch.zeros_like(b)
    for step in range(4):
        net.zero_grad()
        (net(torch.ones(2, 5).double()).square().sum() * (step + 1)).backward()
        gw, gb = net.weight.grad + 0.1 * w, net.bias.grad
        mw = 0.8 * mw + 0.02 * w.norm() / gw.norm() * gw
        mb = 0.8 * mb + gb
        w, b = w - 0.3 * mw, b - 0.3 * mb
        optimizer.step()
        assert torch.allclose(net.weight, w)
        assert torch.allclose(net.bias, b)


def test_lars_with_nothing_to_scale_by():
    zero = nn.Parameter(torch.zeros(2, 2))
    zero.grad = torch.ones(2, 2)
    LARS([{"params": [zero], "weight_decay": 0.1}], lr=1.0).step()
    assert torch.equal(zero.data, -torch.ones(2, 2))
    LARS([nn.Parameter(torch.ones(2))], lr=1.0).step()  # no gradient: no step


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_larc_is_apex_around_sgd(decay):
    g = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(7, generator=g, dtype=torch.float64))
    gradients = torch.randn(5, 7, generator=g, dtype=torch.float64)
    gradients[3] = 0  # no slope: no decay either
    expected = reference.larc(w.detach(), gradients, 0.4, 0.9, decay, 0.02)
    optimizer = LARC([w], lr=0.4, momentum=0.9, weight_decay=decay, trust=0.02)
    for gradient, after in zip(gradients, expected, strict=True):
        w.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(w.detach(), after)
    zero = nn.Parameter(torch.zeros(2))
    zero.grad = torch.ones(2)
    LARC([zero], lr=1.0, weight_decay=0.1).step()
    assert torch.equal(zero.data, -torch.ones(2))
    LARC([nn.Parameter(torch.ones(2))]).step()  # no gradient: no step


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr("regard.training._progress.time.monotonic", lambda: now[0])
    return now


def test_progress_comes_by_the_clock(capsys, clock):
    """Two or three lines a minute, however quick a step is: an estimate, the time left, the time it took."""
    progress = Progress(1000)
    for step in range(1, 1001):
        clock[0] += 0.125
        progress.show(step, "loss 0.5000  12 samples/s")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 40/1000  loss 0.5000  12 samples/s  about 2 minutes here"
    assert lines[1] == "step 240/1000  loss 0.5000  12 samples/s  1:35 left"
    assert lines[-1] == "step 1000/1000  loss 0.5000  12 samples/s  took 2:05"
    assert len(lines) == 6


def test_progress_of_slow_steps_and_of_a_resumed_run(capsys, clock):
    progress = Progress(100, "picture", start=90)
    for done in range(90, 101):
        progress.show(done)
        clock[0] += 40
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["picture 91/100  about 6 minutes here", "picture 92/100  5:20 left"]
    assert len(lines) == 10
    Progress(5, shown=False).show(5)
    assert capsys.readouterr().err == ""
