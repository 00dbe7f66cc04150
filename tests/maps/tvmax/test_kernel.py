"""TVmax by the native kernel: its regions, exact solvers, threads and bad scores. `twins.py` has the rest."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from reference import structured as reference
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import native
from regard.maps.tvmax import smoothing, solver, tvmax
from regard.maps.tvmax.kernel import regions_by_kernel
from regard.maps.tvmax.operator import tv_regions

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_regions_and_pull_are_those_of_the_plain_path(dtype, plain):
    torch.manual_seed(0)
    s, gamma, mask = torch.randn(40, 63, dtype=dtype), torch.rand(40, 1, dtype=dtype), torch.rand(40, 63) < 0.9
    labels, pull = tv_regions(s, gamma, mask, 9)
    expected_labels, expected_pull = plain(tv_regions, s, gamma, mask, 9)
    assert torch.equal(labels, expected_labels)
    torch.testing.assert_close(pull, expected_pull)


@pytest.mark.parametrize("gamma", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("rows", [1, 15, 17, 40])
def test_grids_in_lanes_are_solved_as_they_are_alone(rows, gamma, plain):
    """A register holds some grids, masked or not, and what is left over; each has its own scale and gamma."""
    s = torch.randn(rows, 48) * torch.logspace(-2, 4, rows)[:, None]
    s[::3, ::5] = -math.inf
    each = gamma * torch.logspace(-2, 4, rows)[:, None]
    found = regions_by_kernel(s, each, None, 8)
    labels, pull = plain(tv_regions, s.nan_to_num(neginf=0.0), each, s != -math.inf, 8)
    assert torch.equal(found.labels.long(), labels)
    torch.testing.assert_close(found.pull, pull)
    assert torch.equal(found.smooth == -math.inf, s == -math.inf)
    for i in (0, rows - 1):
        alone = regions_by_kernel(s[i : i + 1], each[i : i + 1], None, 8)
        torch.testing.assert_close(alone.smooth[0], found.smooth[i])


def test_a_few_sweeps_certify_where_the_regions_are_found(monkeypatch):
    """The duals of a region are completed along a tree, so that it needs no convergence: 10 sweeps and no more."""
    monkeypatch.setattr(solver, "MOST_ITERATIONS", 10)
    s = torch.randn(64, 14, 14, dtype=torch.float64)
    s[32:] += torch.linspace(0, 30, 14, dtype=torch.float64)
    p = tvmax(s, 0.05)  # would warn
    monkeypatch.undo()
    with native.switched_off():
        torch.testing.assert_close(p, tvmax(s, 0.05), rtol=0, atol=1e-9)


def test_means_over_regions_are_their_own_derivative():
    labels = torch.tensor([[0, 0, 2, 0, 2], [0, 1, 2, 3, 4]], dtype=torch.int32)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    means = smoothing._means(x, labels)
    expected = torch.stack([x[0, [0, 1, 3]].mean(), x[0, [2, 4]].mean()])[torch.tensor([0, 0, 1, 0, 1])]
    torch.testing.assert_close(means, torch.stack([expected, x[1]]))
    assert gradcheck(lambda x: smoothing._means(x, labels), x)
    assert gradgradcheck(lambda x: smoothing._means(x, labels), x)


def test_means_of_many_gradients_at_once():
    labels, several = torch.tensor([[0, 0, 2, 0, 2]], dtype=torch.int32), torch.randn(4, 1, 5)
    found = torch.func.vmap(lambda x: smoothing._means(x, labels))(several)
    torch.testing.assert_close(found, torch.stack([smoothing._means(x, labels) for x in several]))


@pytest.mark.parametrize("gamma", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("size", [(1, 9), (8, 8), (14, 14), (20, 3)])
@pytest.mark.once
def test_smoothing_is_exact_2_5_3(size, gamma):
    s = np.random.default_rng(0).normal(size=size)
    expected = reference.project(reference.smooth(s, gamma))
    assert abs(tvmax(torch.tensor(s), gamma).numpy() - expected).max() < 1e-12
    assert abs(tvmax(torch.tensor(s).float(), gamma).numpy() - expected).max() < 2e-6


@pytest.mark.parametrize("masked", [False, True])
def test_the_joint_problem_is_solved_2_5_1(masked):
    rng = np.random.default_rng(1)
    s = rng.normal(size=(4, 5))
    mask = rng.random((4, 5)) < 0.7 if masked else np.ones((4, 5), bool)
    p = tvmax(torch.tensor(s), 0.2, torch.tensor(mask)).numpy()
    assert abs(p - reference.tvmax(s, 0.2, mask)).max() < 1e-6


def test_a_long_row_is_solved():
    s = torch.randn(2, 1, 4097, dtype=torch.float64)
    p = tvmax(s, 0.1)
    torch.testing.assert_close(p, tvmax(s.mT, 0.1).mT, rtol=0, atol=1e-9)
    torch.testing.assert_close(p.sum((-2, -1)), torch.ones(2, dtype=torch.float64))


def test_grids_of_many_shapes_after_one_another():
    """The memory of a thread is kept from grid to grid."""
    s = [torch.randn(3, h, w) for h, w in ((5, 4), (4, 5), (2, 2), (10, 2), (5, 4))]
    first = [tvmax(x, 0.1) for x in s]
    for x, p in zip(reversed(s), reversed(first), strict=True):
        assert torch.equal(tvmax(x, 0.1), p)


def test_gradients_2_5_8():
    s, gamma = torch.randn(3, 4, 4, dtype=torch.float64), torch.tensor([0.05, 0.2, 0.6], dtype=torch.float64)
    leaves = s.requires_grad_(), gamma[:, None, None].clone().requires_grad_()
    assert gradcheck(tvmax, leaves)
    assert gradgradcheck(tvmax, leaves)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_goes_through_single(dtype):
    s = torch.randn(3, 7, 7).to(dtype)
    assert torch.equal(tvmax(s, 0.1), tvmax(s.float(), 0.1).to(dtype))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads):
    s, before = torch.randn(300, 7, 7), torch.get_num_threads()
    expected = tvmax(s, 0.1)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(tvmax(s, 0.1), expected)
    finally:
        torch.set_num_threads(before)


def test_a_grid_that_is_not_certified_is_named(monkeypatch):
    monkeypatch.setattr(solver, "MOST_ITERATIONS", 10)
    s = torch.randn(9, 30, 30).cumsum(-1)
    s[:4] = 1.0
    with pytest.warns(RuntimeWarning, match=r"5 grid\(s\) not certified after 10 iterations"):
        tvmax(s, 3.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_scores_are_named_or_give_nan(bad):
    s = torch.randn(4, 5, 5)
    s[2, 3, 1] = bad
    with pytest.raises(ValueError, match=r"^s: got"):
        tvmax(s, 0.1)
    with regard.checks(False):
        p = tvmax(s, 0.1)
    assert bool(p[2].isnan().all())
    torch.testing.assert_close(p[:2], tvmax(s[:2], 0.1))


@pytest.mark.once
def test_compiles_with_the_kernel():
    f = partial(tvmax, gamma=0.1)
    s = torch.randn(5, 6, 6)
    torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(s), f(s))
