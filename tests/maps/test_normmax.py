"""Normmax and sparsemax with a budget: against twins, by their objectives, their limits, their derivatives."""

import importlib
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import maps as reference
from torch.autograd import gradcheck, gradgradcheck

import regard

rows = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60)


def tensor(row):
    return torch.tensor(row, dtype=torch.float64)


def hard_rows(n):
    base = torch.linspace(-3, 0, n, dtype=torch.float64)
    whole = [torch.zeros(n), base, 1e4 * torch.eye(n)[n // 2], 1e-6 * torch.randn(n), (base > -1), 1e6 + torch.randn(n)]
    return torch.cat([torch.stack([row.double() for row in whole]), 3 * torch.randn(6, n).double()])


@pytest.mark.parametrize("alpha", [1.01, 1.2, 1.5, 2.0, 3.0, 10.0, 1000.0])
@pytest.mark.parametrize("n", [1, 2, 7, 200, 4097])
def test_normmax_equals_bisection(alpha, n):
    s = hard_rows(n)
    want = reference.normmax(s, alpha)
    # Past alpha = 2 weights rise like a root at the edge of the support, where rounding shows.
    atol = 1e-10 if alpha <= 2 else 1e-6
    torch.testing.assert_close(regard.normmax(s, alpha), want, rtol=0, atol=atol)
    per_row = torch.full((len(s), 1), alpha, dtype=torch.float64)
    torch.testing.assert_close(regard.normmax(s, per_row), want, rtol=0, atol=atol)


@given(rows, st.floats(1.05, 20))
def test_normmax_maximises_its_objective(row, alpha):
    """Equation 2.14: no distribution nearby, and no vertex, does better."""
    s = tensor(row)
    p = regard.normmax(s, alpha)
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    best = s @ p - torch.linalg.vector_norm(p, alpha)
    others = torch.cat([torch.eye(len(row), dtype=s.dtype), torch.softmax(torch.randn(20, len(row)).double(), -1)])
    for weight in (1.0, 0.1, 1e-3):
        nearby = (1 - weight) * p + weight * others
        values = nearby @ s - torch.linalg.vector_norm(nearby, alpha, dim=-1)
        assert (values <= best + 1e-9 * (1 + s.abs().max())).all()


def test_normmax_has_the_limits_of_its_alpha():
    s = torch.tensor([0.0, 0.7, 1.0, 0.9], dtype=torch.float64)
    torch.testing.assert_close(regard.normmax(s, 1.0001), torch.eye(4, dtype=s.dtype)[2], rtol=0, atol=1e-9)
    support = (regard.sparsemax(s) > 0).double()  # of the projection: at the largest alpha its weights are equal
    torch.testing.assert_close(regard.normmax(s, 1e7), support / support.sum(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("budget", [0.0, 0.3, 1.0, 2.0, 2.5, 6.9, 7.0, 9.0])
@pytest.mark.parametrize("n", [1, 2, 7, 200, 4097])
def test_budget_equals_bisection(budget, n):
    s = hard_rows(n)
    want = reference.budget_sparsemax(s, budget)
    torch.testing.assert_close(regard.budget_sparsemax(s, budget), want, rtol=0, atol=2e-9)
    per_row = torch.full((len(s), 1), budget, dtype=torch.float64)
    torch.testing.assert_close(regard.budget_sparsemax(s, per_row), want, rtol=0, atol=2e-9)


@given(rows, st.floats(0, 1))
def test_budget_is_the_nearest_point_that_keeps_to_it(row, part):
    """Equation 2.18: no point nearby with the same sum, from zero to one, is nearer to the scores."""
    s, budget = tensor(row), part * len(row)
    p = regard.budget_sparsemax(s, budget)
    assert ((p >= 0) & (p <= 1)).all()
    assert p.sum().item() == pytest.approx(budget, abs=1e-9)
    others = torch.stack([reference.budget_sparsemax(torch.randn(len(row)).double(), budget) for _ in range(10)])
    for weight in (1.0, 0.1, 1e-3):
        nearby = (1 - weight) * p + weight * others
        assert ((nearby - s).square().sum(-1) >= (p - s).square().sum() - 1e-6).all()


@given(rows)
def test_a_budget_of_one_is_sparsemax(row):
    s = tensor(row)
    torch.testing.assert_close(regard.budget_sparsemax(s, 1), regard.sparsemax(s), rtol=0, atol=1e-12)


def test_far_apart_scores_choose_a_subset():
    s = torch.tensor([5.0, -3.0, 9.0, 1.0, 7.0], requires_grad=True)
    p = regard.budget_sparsemax(s, 3)
    assert p.tolist() == [1, 0, 1, 0, 1]
    p.sum().backward()
    assert (s.grad == 0).all()


def test_a_budget_beyond_what_takes_part_gives_all_of_it_one():
    s = torch.tensor([[0.0, 1.0, -math.inf], [2.0, 0.0, 1.0]])
    assert regard.budget_sparsemax(s, 3).tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("alpha", [1.05, 1.3, 2.0, 5.0])
def test_derivatives_of_normmax(alpha):
    """Equation 2.16, in scores and alpha."""
    s = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    a = torch.full((4, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(regard.normmax, (s, a), check_forward_ad=True)
    assert gradgradcheck(regard.normmax, (s, a))
    assert gradcheck(partial(regard.normmax, alpha=alpha, dim=0), (s,))


def test_derivatives_of_normmax_are_those_of_the_equation():
    s, g = torch.randn(5, 8, dtype=torch.float64, requires_grad=True), torch.randn(5, 8, dtype=torch.float64)
    for alpha in (1.5, 2.0, 3.0):
        p = regard.normmax(s, alpha)
        (got,) = torch.autograd.grad(p, s, g)
        p = p.detach()
        w = torch.where(p > 0, torch.where(p > 0, p, 1) ** (2 - alpha), 0)
        centred = g - (p * g).sum(-1, keepdim=True)
        wanted = w * centred - p * (w * centred).sum(-1, keepdim=True)
        size = torch.linalg.vector_norm(p, alpha, dim=-1, keepdim=True) ** (alpha - 1) / (alpha - 1)
        torch.testing.assert_close(got, wanted * size)


@pytest.mark.parametrize("budget", [0.0, 0.7, 2.0, 3.5, 6.0])
def test_derivatives_of_the_budget(budget):
    """Equation 2.20."""
    s = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    f = partial(regard.budget_sparsemax, budget=budget)
    assert gradcheck(f, (s,), check_forward_ad=True)
    assert gradgradcheck(f, (s,))
    b = torch.tensor([[0.3], [2.2], [3.3], [4.9]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(regard.budget_sparsemax, (s, b), check_forward_ad=True)


@pytest.mark.parametrize(
    "map_", [regard.normmax, partial(regard.budget_sparsemax, budget=3), partial(regard.entmax, alpha=0.5)]
)
def test_inside_attend_in_blocks_and_at_once(map_, monkeypatch):
    q, k, v = torch.randn(2, 9, 4), torch.randn(2, 11, 4), torch.randn(2, 11, 3)
    mask = torch.rand(2, 9, 11) < 0.7
    p = regard.attention_weights(q, k, map=map_, mask=mask)
    assert (p[~mask] == 0).all()
    assert regard.explain_attend(q, k, v, map=map_).algorithm == "direct"
    torch.testing.assert_close(regard.attend(q, k, v, map=map_, mask=mask), p @ v)
    monkeypatch.setattr(importlib.import_module("regard.attention.query_blocks"), "BUDGET", 60)
    assert regard.explain_attend(q, k, v, map=map_).algorithm == "blocks"
    torch.testing.assert_close(regard.attend(q, k, v, map=map_, mask=mask), p @ v)
