import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import structured as reference
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard.maps.entmax import sparsemax
from regard.maps.tvmax import solver, tvmax
from regard.maps.tvmax.operator import tv_regions

inf, nan = float("inf"), float("nan")


def variation(p):
    return p.diff(dim=-1).abs().sum((-2, -1)) + p.diff(dim=-2).abs().sum((-2, -1))


@st.composite
def grids(draw, most=6):
    """Scores (h, w) of many kinds: any scale, and ties in half of them."""
    h, w = draw(st.integers(1, most)), draw(st.integers(1, most))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    s = torch.randn(h, w, dtype=torch.float64) * draw(st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e4]))
    return (s * 2).round() if draw(st.booleans()) else s


gammas = st.sampled_from([0.0, 1e-4, 0.01, 0.1, 0.3, 1.0, 100.0])


# The value


@pytest.mark.parametrize("gamma", [0.0, 0.03, 0.1, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (6, 1), (3, 4), (5, 5)])
def test_solves_the_joint_problem_2_5_1(size, gamma):
    rng = np.random.default_rng(0)
    for masked in (False, True):
        s = rng.normal(size=size)
        mask = rng.random(size) < 0.75 if masked else np.ones(size, bool)
        mask.flat[0] = True
        p = tvmax(torch.tensor(s), gamma, torch.tensor(mask)).numpy()
        assert abs(p - reference.tvmax(s, gamma, mask)).max() < 1e-6
        assert (p[~mask] == 0).all()


@pytest.mark.parametrize("gamma", [0.05, 0.25, 1.0])
@pytest.mark.once
def test_a_14_by_14_grid_is_exact_2_5_3(gamma):
    s = torch.randn(14, 14, dtype=torch.float64)
    expected = reference.project(reference.smooth(s.numpy(), gamma))
    assert abs(tvmax(s, gamma).numpy() - expected).max() < 1e-12
    assert abs(tvmax(s.float(), gamma).numpy() - expected).max() < 2e-6


@pytest.mark.parametrize("gamma", [0.03, 0.3, 2.0])
def test_gentle_slopes_are_told_from_plains_2_5_6(gamma):
    s = torch.randn(12, 10, 10, dtype=torch.float64).cumsum(1).cumsum(2)
    everywhere, each = torch.ones(12, 100, dtype=torch.bool), torch.full((12, 1), gamma, dtype=torch.float64)
    labels, pull = tv_regions(s.flatten(1), each, everywhere, 10)
    for i in range(12):
        means = torch.stack([s[i].flatten()[labels[i] == label].mean() for label in labels[i]])
        expected = torch.tensor(reference.smooth(s[i].numpy(), gamma)).flatten()
        torch.testing.assert_close(means + gamma * pull[i], expected, atol=1e-6, rtol=0)


def test_scores_far_from_zero_keep_their_digits():
    s = 1e4 + 0.1 * torch.randn(5, 8, 8)
    torch.testing.assert_close(tvmax(s, 0.05), tvmax(s.double(), 0.05).float(), atol=1e-6, rtol=0)


@given(grids(most=4), st.sampled_from([0.01, 0.1, 0.3, 1.0]))
def test_no_other_point_has_a_smaller_objective(s, gamma):
    mask = torch.rand(s.shape) < 0.8
    mask.view(-1)[0] = True
    p = tvmax(s, gamma, mask)
    at_p = reference.objective(p.numpy(), s.numpy(), gamma, mask.numpy())
    for size in (1.0, 1e-2, 1e-4):
        other = sparsemax((p + size * torch.randn_like(p)).flatten(), mask=mask.flatten()).view_as(p)
        assert reference.objective(other.numpy(), s.numpy(), gamma, mask.numpy()) >= at_p - 1e-12 * max(1, at_p)


@given(grids(), gammas)
def test_is_a_distribution_and_ignores_a_shift(s, gamma):
    p = tvmax(s, gamma)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(tvmax(s + 3.0, gamma), p, atol=1e-6, rtol=0)


@given(grids(), gammas)
def test_turns_and_flips_with_the_image(s, gamma):
    p = tvmax(s, gamma)
    torch.testing.assert_close(tvmax(s.mT, gamma), p.mT, atol=1e-6, rtol=0)
    torch.testing.assert_close(tvmax(s.flip(0), gamma), p.flip(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(tvmax(s.flip(1), gamma), p.flip(1), atol=1e-6, rtol=0)


@given(grids())
def test_variation_falls_as_gamma_grows(s):
    v = torch.stack([variation(tvmax(s, gamma)) for gamma in (0.0, 1e-3, 0.01, 0.1, 1.0, 10.0)])
    assert (v.diff() <= 1e-5).all()


@given(grids())
def test_gamma_zero_is_sparsemax(s):
    s.requires_grad_()
    p, expected = tvmax(s, 0.0), sparsemax(s.flatten()).view_as(s)
    torch.testing.assert_close(p, expected)
    c = torch.randn_like(p)
    torch.testing.assert_close(torch.autograd.grad(p, s, c), torch.autograd.grad(expected, s, c))


def test_a_large_gamma_is_constant_on_each_connected_part():
    s = torch.randn(4, 5, dtype=torch.float64)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[:, 2] = False
    means = torch.where(torch.arange(5) < 2, s[:, :2].mean(), s[:, 3:].mean()).expand(4, 5)
    expected = sparsemax(means.flatten(), mask=mask.flatten()).view(4, 5)
    torch.testing.assert_close(tvmax(s, 1e3, mask), expected)
    torch.testing.assert_close(tvmax(s, 1e3), torch.full_like(s, 1 / 20))


@given(grids(), gammas)
def test_masking_the_border_leaves_a_smaller_grid(s, gamma):
    framed = torch.nn.functional.pad(s, (1, 2, 1, 0), value=7.0)
    mask = torch.nn.functional.pad(torch.ones_like(s, dtype=torch.bool), (1, 2, 1, 0))
    expected = tvmax(s, gamma)
    p = tvmax(framed, gamma, mask)
    torch.testing.assert_close(p[1:, 1:-2], expected, atol=1e-6, rtol=0)
    assert p[~mask].eq(0).all()
    torch.testing.assert_close(tvmax(framed.masked_fill(~mask, -inf), gamma), p)


def test_each_grid_of_a_batch_is_solved_by_itself():
    s = torch.randn(3, 4, 6, 5, dtype=torch.float64) * torch.logspace(-3, 3, 4, dtype=torch.float64)[:, None, None]
    gamma = torch.tensor([0.01, 0.3, 5.0], dtype=torch.float64)[:, None, None, None]
    mask = torch.rand(4, 6, 5) < 0.8
    p = tvmax(s, gamma, mask)
    for i in range(3):
        for j in range(4):
            torch.testing.assert_close(p[i, j], tvmax(s[i, j], gamma[i].item(), mask[j]), atol=1e-8, rtol=0)


def test_scores_may_lie_in_memory_in_any_order():
    s = torch.randn(12, 5)
    torch.testing.assert_close(tvmax(s.mT, 0.1, shape=(3, 4)), tvmax(s.mT.contiguous(), 0.1, shape=(3, 4)))


def test_a_batch_larger_than_a_chunk_is_solved_whole():
    s = torch.randn(300, 25, 25)
    p = tvmax(s, 0.02)
    torch.testing.assert_close(p[[0, 299]], tvmax(s[[0, 299]], 0.02))


@pytest.mark.parametrize("size", [(64, 64), (1, 300), (40, 3)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("gamma", [1e-4, 0.1, 100.0])
def test_hard_cases_are_certified_without_a_warning(size, scale, gamma):
    s = torch.randn(size, dtype=torch.float64)
    mask = torch.rand(size) < 0.9
    for scores in (s, (2 * s).round(), torch.zeros_like(s)):
        p = tvmax(scale * scores, gamma, mask)
        torch.testing.assert_close(p.sum(), torch.ones((), dtype=torch.float64))


def test_as_a_map_of_rows():
    s, mask = torch.randn(2, 5, 12), torch.rand(2, 1, 12) < 0.7
    rows = functools.partial(tvmax, gamma=0.1, shape=(3, 4))
    grid = tvmax(s.unflatten(-1, (3, 4)), 0.1, mask.unflatten(-1, (3, 4)))
    torch.testing.assert_close(rows(s, mask=mask), grid.flatten(-2))
    gamma = torch.rand(2, 5, 1)
    grid = tvmax(s.unflatten(-1, (3, 4)), gamma.unsqueeze(-1))
    torch.testing.assert_close(tvmax(s, gamma, shape=(3, 4)), grid.flatten(-2))


# The certificate


@pytest.mark.parametrize("iterations", [0, 1, 3, 10, 40])
def test_the_gap_bounds_the_error_2_5_5(iterations, monkeypatch):
    s, w = torch.randn(20, 30, dtype=torch.float64), 6
    cap, edges = torch.full((20, 1), 0.3, dtype=torch.float64), solver._edges(torch.ones(20, 30).bool(), w)
    monkeypatch.setattr(solver, "CHECK_EVERY", iterations)
    u = torch.zeros(2, 20, 30, dtype=torch.float64)
    u = solver._descend(s, u, u.clone(), edges * cap, w)[0]
    labels, pull, gap = solver._polished(s, cap, u, edges, solver._primal(s, u, w), w)
    for i in range(20):
        exact = torch.tensor(reference.smooth(s[i].view(5, 6).numpy(), 0.3)).flatten()
        value = torch.stack([s[i][labels[i] == label].mean() for label in labels[i]]) + 0.3 * pull[i]
        assert (value - exact).norm() <= (2 * gap[i]).sqrt() + 1e-12


def test_regions_are_the_same_at_a_thousandth_of_the_tolerance(monkeypatch):
    s, gamma, mask = torch.randn(100, 400), torch.full((100, 1), 0.3), torch.ones(100, 400, dtype=torch.bool)
    labels, pull = tv_regions(s, gamma, mask, 20)
    monkeypatch.setattr(solver, "TOLERANCE", 1e-9)
    torch.testing.assert_close(tv_regions(s, gamma, mask, 20), (labels, pull), rtol=0, atol=0)


def test_says_so_when_it_does_not_converge(monkeypatch):
    monkeypatch.setattr(solver, "MOST_ITERATIONS", 40)
    s = torch.randn(3, 30, 30)
    with pytest.warns(RuntimeWarning, match=r"3 grid\(s\) not certified after 40 iterations"):
        p = tvmax(s, 1.0)
    torch.testing.assert_close(p.sum((1, 2)), torch.ones(3), atol=1e-4, rtol=0)


def test_single_precision_solves_too(monkeypatch):
    s = torch.randn(8, 12, 12)
    expected = tvmax(s, 0.3)
    monkeypatch.setattr(solver, "_working_dtype", lambda device: torch.float32)
    torch.testing.assert_close(tvmax(s, 0.3), expected, atol=1e-5, rtol=0)


# The gradient


@pytest.mark.parametrize("gamma", [0.05, 0.2, 0.8])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_in_scores_and_gamma_2_5_8(gamma, masked):
    s = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    g = torch.full((3, 1, 1), gamma, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 3, 4) < 0.7 if masked else None
    run = functools.partial(tvmax, mask=mask)
    assert gradcheck(run, (s, g))
    assert gradgradcheck(run, (s, g))


def test_gradient_on_a_large_grid():
    s = (0.1 * torch.randn(14, 14, dtype=torch.float64)).requires_grad_()
    gamma = torch.tensor(0.02, dtype=torch.float64, requires_grad=True)
    c, ds, step = torch.randn(14, 14, dtype=torch.float64), torch.randn(14, 14, dtype=torch.float64), 1e-7
    grad_s, grad_gamma = torch.autograd.grad(tvmax(s, gamma), (s, gamma), c)
    assert grad_gamma.abs() > 0.1
    assert (grad_s != 0).sum() > 20
    with torch.no_grad():
        along = ((tvmax(s + step * ds, gamma) - tvmax(s - step * ds, gamma)) * c).sum() / (2 * step)
        in_gamma = ((tvmax(s, gamma + step) - tvmax(s, gamma - step)) * c).sum() / (2 * step)
    torch.testing.assert_close((grad_s * ds).sum(), along, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(grad_gamma, in_gamma, rtol=1e-5, atol=1e-7)


@given(grids(), gammas)
def test_gradients_are_finite_and_scores_share_them_within_a_region(s, gamma):
    s.requires_grad_()
    g = torch.tensor(gamma, dtype=torch.float64, requires_grad=True)
    grad_s, grad_gamma = torch.autograd.grad(tvmax(s, g), (s, g), torch.randn_like(s))
    assert grad_s.isfinite().all()
    assert grad_gamma.isfinite()
    assert grad_s.sum().abs() < 1e-9


def test_gradient_in_gamma_at_zero_is_one_sided():
    s = 0.2 * torch.randn(4, 5, dtype=torch.float64)
    gamma = torch.zeros((), dtype=torch.float64, requires_grad=True)
    c = torch.randn_like(s)
    (grad,) = torch.autograd.grad(tvmax(s, gamma), gamma, c)
    torch.testing.assert_close(grad, ((tvmax(s, 1e-7) - tvmax(s, 0.0)) * c).sum() / 1e-7, rtol=1e-5, atol=1e-7)
    assert grad.abs() > 0.1


# Transforms of torch


def test_the_solver_is_a_sound_operator():
    s, gamma = torch.randn(2, 3, 12), torch.rand(2, 3, 1)
    torch.library.opcheck(tv_regions, (s, gamma, torch.ones(2, 3, 12, dtype=torch.bool), 4))


@pytest.mark.once
def test_compiles_in_one_piece():
    s = torch.randn(4, 5, 5, requires_grad=True)
    gamma = torch.tensor(0.2, requires_grad=True)
    mask = torch.rand(5, 5) < 0.8
    compiled = torch.compile(tvmax, fullgraph=True, backend="aot_eager")
    expected, p = tvmax(s, gamma, mask), compiled(s, gamma, mask)
    torch.testing.assert_close(p, expected)
    c = torch.randn_like(p)
    torch.testing.assert_close(torch.autograd.grad(p, (s, gamma), c), torch.autograd.grad(expected, (s, gamma), c))


def test_vmap_over_scores_gamma_and_mask():
    s, gamma, mask = torch.randn(4, 3, 5), torch.rand(4), torch.rand(3, 5, 4) < 0.8
    p = torch.func.vmap(tvmax, in_dims=(0, 0, 2))(s, gamma, mask)
    torch.testing.assert_close(p, tvmax(s, gamma[:, None, None], mask.movedim(2, 0)))
    p = torch.func.vmap(tvmax, in_dims=(None, 0))(s, gamma)
    torch.testing.assert_close(p[1], tvmax(s, gamma[1]))


def test_vmap_of_the_solver_along_any_axis():
    s, gamma, mask = torch.randn(2, 4, 15), torch.rand(2, 1), torch.rand(2, 15, 4) < 0.8
    found = torch.func.vmap(tv_regions, in_dims=(1, None, 2, None))(s, gamma, mask, 5)
    expected = tv_regions(s.movedim(1, 0), gamma.expand(4, 2, 1), mask.movedim(2, 0), 5)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in jacfwd
def test_func_transforms_agree_with_autograd():
    s = torch.randn(3, 4, dtype=torch.float64)
    run = functools.partial(tvmax, gamma=0.2)
    jacobian = torch.autograd.functional.jacobian(run, s)
    torch.testing.assert_close(torch.func.jacrev(run)(s), jacobian)
    torch.testing.assert_close(torch.func.jacfwd(run)(s), jacobian)

    def loss(x):
        return (run(x) ** 3).sum()

    torch.testing.assert_close(torch.func.hessian(loss)(s), torch.autograd.functional.hessian(loss, s))
    per_grid = torch.func.vmap(torch.func.grad(loss))(torch.stack([s, 2 * s]))
    torch.testing.assert_close(per_grid[1], torch.autograd.functional.jacobian(loss, 2 * s))


# Edges


@pytest.mark.parametrize("how", ["mask", "scores"])
def test_a_grid_masked_whole_is_zero_and_so_is_its_gradient(how):
    s = torch.randn(2, 3, 3)
    mask = torch.ones(2, 3, 3, dtype=torch.bool)
    if how == "mask":
        mask[1] = False
    else:
        s[1] = -inf
    s.requires_grad_()
    gamma = torch.full((2, 1, 1), 0.1, requires_grad=True)
    p = tvmax(s, gamma, mask)
    assert p[1].eq(0).all()
    torch.testing.assert_close(p[0], tvmax(s[0], 0.1))
    grad_s, grad_gamma = torch.autograd.grad(p, (s, gamma), torch.randn_like(p))
    assert grad_s[1].eq(0).all()
    assert grad_gamma[1].eq(0).all()
    assert grad_s.isfinite().all()


def test_masked_scores_may_be_anything():
    s = torch.randn(3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, 1:3] = False
    expected = tvmax(s, 0.2, mask)
    s[1, 1], s[1, 2] = nan, inf
    s.requires_grad_()
    p = tvmax(s, 0.2, mask)
    torch.testing.assert_close(p, expected)
    assert torch.autograd.grad(p, s, torch.randn_like(p))[0].isfinite().all()


def test_a_constant_image_is_uniform():
    torch.testing.assert_close(tvmax(torch.full((2, 3, 4), 5.0), 0.3), torch.full((2, 3, 4), 1 / 12))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    s = torch.randn(2, 6, 6).to(dtype).requires_grad_()
    p = tvmax(s, 0.1)
    assert p.dtype == dtype
    torch.testing.assert_close(p, tvmax(s.detach().float(), 0.1).to(dtype))
    assert torch.autograd.grad(p.float().square().sum(), s)[0].isfinite().all()


@pytest.mark.parametrize("value", [1e30, 3e38])
def test_huge_scores_stay_finite(value):
    s = torch.tensor([[value, -value], [value, 0.0]], requires_grad=True)
    p = tvmax(s, 0.1)
    torch.testing.assert_close(p, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))
    assert torch.autograd.grad(p[0, 0], s)[0].isfinite().all()


def test_scores_need_not_be_contiguous_and_a_batch_may_be_empty():
    s = torch.randn(4, 5, 6)
    torch.testing.assert_close(tvmax(s.permute(1, 2, 0), 0.1), tvmax(s.permute(1, 2, 0).contiguous(), 0.1))
    assert tvmax(torch.empty(0, 3, 4), 0.1).shape == (0, 3, 4)


@pytest.mark.parametrize(
    ("error", "says", "call"),
    [
        (ValueError, "s: got NaN", lambda s: tvmax(s * nan, 0.1)),
        (ValueError, r"s: got \+inf", lambda s: tvmax(s + inf, 0.1)),
        (TypeError, "s: got torch.int64", lambda s: tvmax(s.long(), 0.1)),
        (ValueError, "s: .*at least 2 dimensions", lambda s: tvmax(s[0], 0.1)),
        (ValueError, "s: .*empty", lambda s: tvmax(s[:, :0], 0.1)),
        (ValueError, "gamma: got -1", lambda s: tvmax(s, -1)),
        (ValueError, "gamma: got inf", lambda s: tvmax(s, inf)),
        (TypeError, "gamma: .*a number", lambda s: tvmax(s, "0.1")),
        (ValueError, "gamma: got a negative entry, -1.0", lambda s: tvmax(s, torch.tensor(-1.0))),
        (ValueError, "gamma: got NaN", lambda s: tvmax(s, torch.tensor(nan))),
        (ValueError, "gamma: got shape .*one number per grid", lambda s: tvmax(s, torch.rand(3, 4))),
        (TypeError, "mask: .*boolean", lambda s: tvmax(s, 0.1, s)),
        (ValueError, "mask: got shape", lambda s: tvmax(s, 0.1, torch.ones(4, 3, dtype=torch.bool))),
        (ValueError, r"shape: got \(2, 3\), 6 cells", lambda s: tvmax(s, 0.1, shape=(2, 3))),
        (TypeError, "shape: got 4", lambda s: tvmax(s, 0.1, shape=4)),
    ],
)
def test_complaints(error, says, call):
    with pytest.raises(error, match=says):
        call(torch.randn(3, 4))


def test_bad_values_give_nan_and_no_wrong_answer_when_checks_are_off():
    s = torch.randn(3, 3, 4)
    gamma = torch.tensor([0.1, -0.1, 0.1])[:, None, None]
    with regard.checks(False):
        p = tvmax(s.index_fill(0, torch.tensor([2]), nan), gamma)
    torch.testing.assert_close(p[0], tvmax(s[0], 0.1))
    assert p[1:].isnan().all()
