"""Wasserstein affinities: their scores are minus a distance, and the one-call form gives the same attention."""

import pytest
import torch
from reference.transport import attention
from torch import Tensor

from regard.affinity import Factored
from regard.attention.attend import attend
from regard.maps.entmax import softmax
from regard.maps.gates import gate, inverse
from regard.wasserstein import bures_w2, entropic_wasserstein, gaussian_w2, histogram_wasserstein, wasserstein_1d
from regard.wasserstein.affinities import (
    BuresW2,
    Distance,
    EmpiricalW2,
    EntropicW2,
    Euclidean,
    GaussianW2,
    HistogramW1,
    Unsquared,
)

AFFINITIES = {
    "gaussian": GaussianW2(tau=0.7),
    "empirical": EmpiricalW2(tau=0.7),
    "euclidean": Euclidean(tau=0.7),
    "unsquared": Unsquared(GaussianW2(), tau=0.7),
    "bures": BuresW2(2, 2, tau=0.7),
    "histogram": HistogramW1(tau=0.7),
    "entropic": EntropicW2(2, eps=1.0, tau=0.7),
}
EMBEDDED = ["gaussian", "empirical", "euclidean"]
each_affinity = pytest.mark.parametrize("affinity", AFFINITIES.values(), ids=AFFINITIES)


def packed(affinity: Distance, *shape: int, offset: float = 0.0) -> Tensor:
    return affinity.pack(torch.randn(*shape, affinity.features(4), dtype=torch.float64) + offset)


@each_affinity
def test_scores_fall_with_distance_and_are_highest_for_the_query_itself(affinity: Distance) -> None:
    q = packed(affinity, 2, 5)
    s = affinity.scores(q, q)
    w = affinity.distance(q, q)
    assert s.shape == (2, 5, 5)
    assert (s.argmax(-1) == torch.arange(5)).all()
    assert (s.gather(-1, w.argsort(-1)).diff(dim=-1) <= 1e-12).all()
    expected = -w / 0.7 if not isinstance(affinity, Factored) else -(w**2) / 0.7
    torch.testing.assert_close(s, expected)


def test_scores_are_those_of_the_distances() -> None:
    q, k = torch.rand(3, 6, dtype=torch.float64), torch.rand(4, 6, dtype=torch.float64)
    cases = [
        (GaussianW2(), -(gaussian_w2(q[:, :3], q[:, 3:], k[:, :3], k[:, 3:], pairwise=True) ** 2)),
        (Euclidean(), -((q[:, None] - k) ** 2).sum(-1)),
        (EmpiricalW2(), -(wasserstein_1d(q, k, 2, pairwise=True) ** 2)),
        (HistogramW1(), -histogram_wasserstein(q.softmax(-1), k.softmax(-1), pairwise=True)),
        (EntropicW2(3), -entropic_wasserstein(q.view(3, 2, 3), k.view(4, 2, 3), pairwise=True, iterations=200)),
    ]
    lq, lk = q[:, 2:].view(3, 2, 2), k[:, 2:].view(4, 2, 2)
    cases.append((BuresW2(2), -bures_w2(q[:, :2], lq @ lq.mT, k[:, :2], lk @ lk.mT, pairwise=True)))
    for affinity, expected in cases:
        torch.testing.assert_close(affinity.scores(q, k), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("affinity", [AFFINITIES[name] for name in EMBEDDED], ids=EMBEDDED)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_factors_differ_from_scores_by_a_constant_of_the_query(affinity: GaussianW2, offset: float) -> None:
    q, k = packed(affinity, 2, 5, offset=offset), packed(affinity, 2, 7, offset=offset)
    a, b = affinity.factors(q, k)
    difference = a @ b.mT - affinity.scores(q, k)
    assert (difference - difference.mean(-1, keepdim=True)).abs().max() < 1e-9
    assert not affinity.exact
    # In float32 too, far from zero: centring keeps the digits.
    v = torch.randn(1, 2, 7, 3)
    q, k = q[None].float(), k[None].float()
    expected = attention(affinity.scores(q.double(), k.double()), v.double(), "softmax")
    ours = attend(q, k, v, affinity=affinity, map=softmax)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5 if offset == 0 else 1e-3)


@each_affinity
@pytest.mark.parametrize(("name", "map_"), [("softmax", softmax), ("inverse", inverse), ("gate", gate)])
def test_attention_and_its_gradient(affinity: Distance, name: str, map_) -> None:
    q, k = packed(affinity, 1, 2, 5).requires_grad_(), packed(affinity, 1, 2, 6).requires_grad_()
    v = torch.randn(1, 2, 6, 3, dtype=torch.float64, requires_grad=True)
    ours = attend(q, k, v, affinity=affinity, map=map_)
    expected = attention(affinity.scores(q, k), v, name)
    torch.testing.assert_close(ours, expected)
    weight = torch.randn_like(expected)
    grads = [torch.autograd.grad((y * weight).sum(), (q, k, v)) for y in (ours, expected)]
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-8)
    assert all(g.abs().max() > 0 for g in grads[0])


def test_tau_can_be_learned_for_each_head() -> None:
    tau = torch.tensor([0.5, 2.0]).view(2, 1, 1).requires_grad_()
    q, v = torch.rand(1, 2, 5, 4), torch.randn(1, 2, 5, 3)
    ours = attend(q, q, v, affinity=GaussianW2(tau), map=softmax)
    for h, t in enumerate((0.5, 2.0)):
        expected = attend(q[:, h : h + 1], q[:, h : h + 1], v[:, h : h + 1], affinity=GaussianW2(t), map=softmax)
        torch.testing.assert_close(ours[:, h : h + 1], expected)
    ours.sum().backward()
    assert tau.grad is not None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GaussianW2(tau=0.0), "tau: got 0"),
        (lambda: GaussianW2().scores(torch.ones(2, 3), torch.ones(2, 3)), "q or k: got width 3"),
        (lambda: GaussianW2().factors(-torch.ones(2, 4), torch.ones(2, 4)), "q or k: got a negative scale"),
        (lambda: Euclidean(-1.0), "tau: got -1"),
        (lambda: Euclidean().scores(torch.ones(2, 5), torch.ones(2, 4)), "k: got shape"),
        (lambda: BuresW2(2).scores(torch.ones(2, 5), torch.ones(2, 5)), "q or k: got width 5"),
        (lambda: EntropicW2(2).scores(torch.ones(2, 5), torch.ones(2, 5)), "q or k: got width 5"),
    ],
)
def test_complaints(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
