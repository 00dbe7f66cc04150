"""Entmax with alpha above two, against many digits; and where float32 has few: edges of the support, huge scores."""

import contextlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import maps as reference
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import native

ROWS = {
    "two": [0.0, -0.1],
    "near": [0.0, -1e-3],
    "three": [0.3, 0.25, -0.5],
    "ties": [1.0, 1.0, 0.999, -2.0],
    "uniform": [2.0] * 3,
    "tiny": [0.0, -1e-12, -2e-12],
    "far": [0.0, -5.0, -1e4],
}


@pytest.mark.parametrize(
    ("row", "alpha"),
    # The truth at alpha = 100 takes 480 digits, and seconds.
    [*((row, alpha) for row in ROWS for alpha in (2.0001, 3.0, 10.0, 30.0)), ("two", 100.0), ("ties", 100.0)],
)
def test_equals_many_digits(row, alpha):
    s = torch.tensor(ROWS[row], dtype=torch.float64)
    truth = torch.tensor(reference.precise_entmax(ROWS[row], alpha), dtype=torch.float64)
    torch.testing.assert_close(regard.entmax(s, alpha), truth, rtol=0, atol=1e-10)
    per_row = torch.tensor([[alpha]], dtype=torch.float64)
    torch.testing.assert_close(regard.entmax(s[None], per_row)[0], truth, rtol=0, atol=1e-10)
    truth = torch.tensor(reference.precise_entmax(s.float().tolist(), alpha), dtype=torch.float64)
    torch.testing.assert_close(regard.entmax(s.float(), alpha).double(), truth, rtol=0, atol=1e-6)


def test_rows_with_alphas_of_every_range_are_solved_each_by_itself():
    s = torch.randn(9, 40, dtype=torch.float64)
    alpha = torch.tensor([0.5, 1.0, 1.1, 1.25, 1.3, 1.9, 2.0, 2.5, 60.0], dtype=torch.float64)[:, None]
    together = regard.entmax(s, alpha)
    for row, number, p in zip(s, alpha.flatten().tolist(), together, strict=True):
        torch.testing.assert_close(p, regard.entmax(row, number), rtol=0, atol=1e-10)


@pytest.mark.parametrize("alpha", [2.5, 5.0])
def test_gradients_of_steep_weights(alpha):
    s = torch.tensor([[0.4, 0.3, 0.1, -3.0], [0.2, 0.2, 0.15, 0.0]], dtype=torch.float64, requires_grad=True)
    alphas = torch.full((2, 1), alpha, dtype=torch.float64, requires_grad=True)
    s_small = (s.detach() / alpha).requires_grad_()
    assert gradcheck(lambda s: regard.entmax(s, alpha), s_small, eps=1e-9, atol=1e-4, rtol=1e-4)
    assert gradcheck(regard.entmax, (s_small, alphas), eps=1e-9, atol=1e-4, rtol=1e-4)
    assert gradgradcheck(lambda s: regard.entmax(s, alpha), s_small, eps=1e-9, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("alpha", [3.0, 12.0, 30.0, 100.0])
def test_gradients_stay_finite(alpha, learned, dtype):
    """The slope of a uniform row is n^(alpha - 2), past the largest number for long rows: it stops there."""
    for row in ([0.0] * 10_000, [0.0, -0.1], [0.5] + [0.0] * 50):
        s = torch.tensor([row], dtype=dtype, requires_grad=True)
        a = torch.tensor([[alpha]], dtype=dtype, requires_grad=True) if learned else alpha
        (regard.entmax(s, a) * torch.linspace(-1, 1, len(row), dtype=dtype)).sum().backward()
        assert s.grad.isfinite().all()
        assert not learned or a.grad.isfinite().all()


def test_the_gradient_of_a_uniform_row_in_units_of_its_slope():
    s = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([1.0, 0.0, 0.0, -1.0], dtype=torch.float64)
    (regard.entmax(s, 30.0) * g).sum().backward()
    torch.testing.assert_close(s.grad, g * 4.0**28, rtol=1e-10, atol=0)


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=30), st.floats(2.01, 100))
def test_is_the_maximum(row, alpha):
    s = torch.tensor(row, dtype=torch.float64)
    p = regard.entmax(s, alpha)
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    value = s @ p + reference.tsallis(p, alpha)
    others = torch.cat([torch.eye(len(row), dtype=s.dtype), torch.softmax(s / 0.1, -1)[None]])
    for share in (1.0, 0.1, 1e-3):
        mixed = (1 - share) * p + share * others
        assert (mixed @ s + reference.tsallis(mixed, alpha) <= value + 1e-9 * (1 + s.abs().max())).all()


def test_masked_and_empty_rows():
    s = torch.tensor([[0.0, -0.1, 5.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    p = regard.entmax(s, 10.0, mask=mask)
    torch.testing.assert_close(p[0, :2], regard.entmax(s[0, :2], 10.0))
    assert p[0, 2] == 0
    assert (p[1] == 0).all()
    with regard.checks(False):
        assert regard.entmax(torch.tensor([math.nan, 0.0]), 3.0).isnan().any()


@pytest.mark.parametrize("alpha", [0.5, 1.1, 1.25, 1.3, 1.5, 1.9, 1.99, 2.0, 2.5])
def test_many_small_weights_in_float32(alpha):
    """One score above 31,999 others: their weights are differences of numbers near the edge of the support."""
    for top in (1.0, 0.5, 0.99):
        s = torch.zeros(1, 32_000)
        s[0, 77] = top
        truth = regard.entmax(s.double(), alpha)
        for alphas in (alpha, torch.tensor([[alpha]])):
            for plain in (False, True):
                with native.switched_off() if plain else contextlib.nullcontext():
                    p = regard.entmax(s, alphas)
                assert (p.double() - truth).abs().max() < 2e-6


@pytest.mark.parametrize("alpha", [0.5, 1.0001, 1.2, 1.3, 1.5, 2.0, 3.0])
def test_the_largest_numbers(alpha):
    with native.switched_off():
        for n in (2, 40, 4096):
            p = regard.entmax(torch.full((1, n), 3e38), alpha)
            torch.testing.assert_close(p, torch.full((1, n), 1 / n))
        torch.testing.assert_close(regard.entmax(torch.tensor([3e38, -3e38]), alpha), torch.tensor([1.0, 0.0]))
