"""Gate and inverse: against their formulas, masks, gradients, errors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.maps.entmax import softmax
from regard.maps.gates import gate, inverse


@given(st.integers(0, 10**6), st.floats(0.1, 5), st.floats(-3, 3))
def test_a_smaller_distance_always_weighs_more(seed: int, tau: float, bias: float) -> None:
    torch.manual_seed(seed)
    w = 5 * torch.rand(4, 7, dtype=torch.float64)
    order = w.argsort(-1)
    weights = {
        "gate": gate(-w, bias=bias, tau=tau),
        "inverse": inverse(-w / tau),
        "softmax": softmax(-w / tau),
    }
    for name, p in weights.items():
        assert (p.gather(-1, order).diff(dim=-1) < 0).all(), name
        assert (p > 0).all()
    torch.testing.assert_close(weights["inverse"].sum(-1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(weights["gate"], 1 / (1 + ((w - bias) / tau).exp()))
    ratio = weights["inverse"][:, :1] / weights["inverse"]
    torch.testing.assert_close(ratio, (1 + w / tau) / (1 + w[:, :1] / tau))


@pytest.mark.parametrize("map_", [gate, inverse])
def test_masks_and_minus_infinity(map_) -> None:
    s = -torch.rand(3, 4)
    s[0, 1] = -math.inf
    s.requires_grad_()
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1], mask[2, 0] = False, False
    p = map_(s, mask=mask)
    assert p[0, 1] == 0
    assert p[1].eq(0).all()
    assert p[2, 0] == 0
    torch.testing.assert_close(p[2, 1:], map_(s[2, 1:]))
    p.square().sum().backward()
    assert s.grad.isfinite().all()
    assert s.grad[1].eq(0).all()
    torch.testing.assert_close(map_(s.mT, dim=0, mask=mask.mT), p.mT)
    assert map_(s.detach().bfloat16()).dtype == torch.bfloat16


def test_gradients() -> None:
    s = -torch.rand(3, 4, dtype=torch.float64).requires_grad_()
    bias, tau = (torch.rand(3, 1, dtype=torch.float64).requires_grad_() for _ in range(2))
    torch.autograd.gradcheck(lambda s, b, t: gate(s, bias=b, tau=t + 0.5), (s, bias, tau))
    torch.autograd.gradcheck(inverse, (s,))
    torch.autograd.gradgradcheck(inverse, (s,))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gate(torch.zeros(2), tau=0.0), "tau: got 0"),
        (lambda: gate(torch.tensor([math.nan])), "s: got NaN"),
        (lambda: inverse(torch.ones(2)), "s: got a score above 0"),
        (lambda: inverse(torch.zeros(2), dim=1), "dim: got 1"),
        (lambda: inverse(torch.zeros(0)), "s: got shape"),
    ],
)
def test_complaints(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
