"""Sinkhorn's passes by the native kernel, and the plans that come of them. `twins.py` compares them with torch."""

import math

import pytest
import torch
from reference import transport as reference
from torch.autograd import gradcheck

import regard
from regard import native
from regard.maps.sinkhorn import products

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")


def test_rows_without_mass_and_columns_of_zeros(plain):
    matrix = torch.rand(3, 40, 9)
    matrix[0, 5], matrix[1, :, 3], matrix[2] = 0, 0, 1e-40
    v, a = torch.rand(3, 9), torch.rand(3, 40)
    a[0, 5] = a[1, 7] = 0
    sums, u, ahead = products.scaled_rows(matrix, v, a)
    expected = plain(products.scaled_rows, matrix, v, a)
    torch.testing.assert_close(sums, expected[0], rtol=1e-5, atol=1e-44)
    torch.testing.assert_close(u, expected[1])
    torch.testing.assert_close(ahead, products.times_rows(expected[1], matrix))
    assert float(u[0, 5]) == float(u[1, 7]) == 0 == float(ahead[1, 3])


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (40, 70), (4, 6, 6), (2, 3, 50, 20), (700, 500)])
@pytest.mark.parametrize("how", [{}, {"iterations": 25}, {"tol": 1e-5}, {"eps": 1e-3, "iterations": 12}])
def test_iterations_and_residual_are_those_of_the_plain_path(shape, how, plain):
    torch.manual_seed(0)
    s = torch.rand(shape)
    ours, theirs = regard.sinkhorn(s, **how), plain(regard.sinkhorn, s, **how)
    assert abs(ours.iterations - theirs.iterations) <= 1
    torch.testing.assert_close(ours.residual, theirs.residual, rtol=0.05, atol=1e-4)
    torch.testing.assert_close(ours.plan.sum(-1), theirs.plan.sum(-1))


def test_the_plan_is_that_of_the_definition():
    s = torch.randn(13, 9, dtype=torch.float64)
    found = regard.sinkhorn(s, 0.3, 7)
    a, b = torch.full((13,), 1 / 13, dtype=torch.float64), torch.full((9,), 1 / 9, dtype=torch.float64)
    expected = reference.log_plan(s, 0.3, 7, a, b)
    torch.testing.assert_close(found.plan, expected, rtol=1e-10, atol=0)


def test_masks_and_layouts(plain):
    s = torch.rand(60, 80)
    s[4, :], s[:, 9], s[2:20, 30] = -math.inf, -math.inf, -math.inf
    expected = plain(regard.sinkhorn, s.double(), iterations=20).plan.float()
    torch.testing.assert_close(regard.sinkhorn(s, iterations=20).plan, expected, rtol=1e-4, atol=1e-8)
    turned = s.mT.contiguous().mT
    assert products.scaled_rows(turned.exp(), torch.rand(80), torch.rand(60))[2] is None
    torch.testing.assert_close(regard.sinkhorn(turned, iterations=20).plan, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_gradients(gradient):
    s = torch.rand(6, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: regard.sinkhorn(x, 0.5, tol=1e-12, gradient=gradient).plan, (s,))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads):
    matrix, v, a, before = torch.rand(900, 333), torch.rand(333), torch.rand(900), torch.get_num_threads()
    expected = products.scaled_rows(matrix, v, a)
    try:
        torch.set_num_threads(threads)
        for mine, other in zip(products.scaled_rows(matrix, v, a), expected, strict=True):
            assert torch.equal(mine, other)
    finally:
        torch.set_num_threads(before)
