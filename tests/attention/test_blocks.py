"""Blocks of queries as one step of the graph: the gradients are those of the whole, whatever affinity and map hold."""

from functools import partial

import pytest
import torch

import regard
from regard.affinity import Affinity
from regard.attention.parameters import Parameters
from regard.maps.spelling import as_map


class Scaled(torch.nn.Module):
    """A map with a parameter that cannot be seen from outside."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

    def forward(self, s, *, mask):
        return regard.sparsemax(s * self.weight, mask=mask)


class Own(Affinity):
    """Somebody's affinity, with a parameter in a plain attribute."""

    def __init__(self, weight):
        self.weight = weight

    def scores(self, q, k):
        return (q * self.weight) @ k.mT


def number(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def cases():
    torch.manual_seed(0)
    weight, alpha, w_q, w_k, hidden = torch.randn(4, 4).double(), number(1.4), torch.randn(4), torch.randn(4), Scaled()
    weight, w_q, w_k = (x.double().requires_grad_() for x in (weight, w_q, w_k))
    outside = number(0.3)
    return {
        "nothing": (regard.Dot(), regard.sparsemax, []),
        "weight and alpha": (regard.Bilinear(weight), partial(regard.entmax, alpha=alpha), [weight, alpha]),
        "two weights": (regard.Concatenation(w_q, w_k), regard.entmax, [w_q, w_k]),
        "additive": (regard.Additive(w_q), regard.sparsemax, [w_q]),
        "made outside": (regard.Dot(), partial(regard.entmax, alpha=1 + outside.exp()), [outside]),
        "a module": (regard.Dot(), hidden, [hidden.weight]),
        "a closure": (regard.Dot(), lambda s, mask: regard.sparsemax(s * outside, mask=mask), [outside]),
        "an own affinity": (Own(outside), regard.sparsemax, [outside]),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", cases())
def test_gradients_are_those_of_all_rows_at_once(name, causal, monkeypatch):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (7, 9, 9))
    mask = torch.rand(2, 1, 9) < 0.8
    found = []
    monkeypatch.setattr("regard.attention.sparse.Sparse.suits", lambda self, call: False)  # it has no blocks
    for budget in (20, 1 << 20):
        monkeypatch.setattr("regard.attention.query_blocks.BUDGET", budget)
        affinity, map, parameters = cases()[name]
        assert (regard.explain_attend(q, k, v, affinity, map).rows is not None) == (budget == 20)
        c = regard.attend(q, k, v, affinity, map, mask, causal=causal)
        found.append((c, *torch.autograd.grad(c.sin().sum(), [q, k, v, *parameters])))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_only_what_is_asked_for_gets_a_gradient(monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 20)
    q, k, v = torch.randn(7, 4), torch.randn(9, 4, requires_grad=True), torch.randn(9, 4)
    regard.attend(q, k, v, map=regard.sparsemax).sum().backward()
    assert k.grad is not None
    assert q.grad is None


def test_second_derivatives_through_blocks(monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 20)
    q, k, v = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    alpha = number(1.5)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, alpha: regard.attend(q, k, v, regard.Dot(), partial(regard.entmax, alpha=alpha)),
        (q, k, v, alpha),
    )


def test_what_can_be_seen_inside():
    alpha = torch.tensor(1.5)
    seen = Parameters.of(regard.Bilinear(torch.eye(2)), as_map(partial(regard.entmax, alpha=alpha)))
    assert seen.complete
    assert seen.tensors[1] is alpha
    affinity, map = seen.rebuilt([torch.ones(2, 2), torch.tensor(2.0)])
    assert float(affinity.weight.sum()) == 4
    assert float(map.alpha) == 2
    for hidden in (Scaled(), Own(alpha), lambda s, mask: s, as_map(partial(regard.sinkhorn, 1.0))):
        assert not Parameters.of(hidden).complete
