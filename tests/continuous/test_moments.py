import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import continuous as reference

from regard import continuous as C


@pytest.mark.parametrize("cells", [C.grid(3, 5), C.grid(4, 4, at="corner"), C.line(7)], ids=["grid", "corner", "line"])
def test_against_a_loop_over_cells(cells):
    """Equation (5.2)."""
    weights = torch.rand(6, len(cells), dtype=torch.float64)
    density = C.match_moments(weights, cells)
    for b in range(6):
        mean, covariance = reference.moments(weights[b], cells.points, cells.sides)
        torch.testing.assert_close(density.mean[b], mean)
        torch.testing.assert_close(density.covariance[b], covariance)


def test_it_is_the_covariance_of_the_piecewise_constant_density():
    """(5.2) by brute force: each cell replaced by 30 x 30 points spread over it."""
    weights = torch.rand(6, dtype=torch.float64)
    density = C.match_moments(weights, C.grid(2, 3))
    fine = C.grid(60, 90).points
    where = (fine[:, 1] * 2).long() * 3 + (fine[:, 0] * 3).long()
    p = weights[where] / weights[where].sum()
    torch.testing.assert_close(p @ fine, density.mean)
    offset = fine - p @ fine
    torch.testing.assert_close((p * offset.mT) @ offset, density.covariance, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_hot_is_no_special_case(dtype):
    density = C.match_moments(torch.eye(196, dtype=dtype), C.grid(14, 14), alpha=2)
    torch.testing.assert_close(density.mean, C.grid(14, 14).points.to(dtype))
    expected = torch.eye(2, dtype=dtype).expand(196, 2, 2) / 14**2 / 12
    torch.testing.assert_close(density.covariance, expected)


def test_float32_keeps_its_digits_for_peaked_weights():
    weights = reference.cases()["0.99 one-hot"]
    exact = C.match_moments(weights, C.grid(14, 14)).covariance
    single = C.match_moments(weights.float(), C.grid(14, 14)).covariance
    assert (single - exact).abs().max() < 1e-6 * exact.abs().max()


def test_bare_points():
    points = torch.rand(9, 2, dtype=torch.float64)
    weights = torch.rand(3, 9, dtype=torch.float64)
    p = weights / weights.sum(-1, keepdim=True)
    density = C.match_moments(weights, points)
    torch.testing.assert_close(density.mean, p @ points)
    for dtype in (torch.float32, torch.float64):
        hot = torch.eye(9, dtype=dtype).requires_grad_()
        for alpha in (1, 2):
            r = C.match_moments(hot, points.to(dtype), alpha).expect(C.GaussianBasis.on_grid(2, 2, variance=0.1))
            (gradient,) = torch.autograd.grad(r.sum(), hot)
            assert r.isfinite().all()
            assert gradient.isfinite().all()


def test_mask_is_the_same_as_leaving_out():
    """Padding cells take no part."""
    weights = torch.rand(2, 8, dtype=torch.float64)
    mask = torch.arange(8) < 5
    short = C.Locations(C.line(8).points[:5], C.line(8).sides)
    a, b = C.match_moments(weights, C.line(8), mask=mask), C.match_moments(weights[:, :5], short)
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.covariance, b.covariance)
    nothing = C.match_moments(weights, C.line(8), mask=torch.zeros(8, dtype=torch.bool))
    assert nothing.mean.eq(0).all()
    assert nothing.covariance.gt(0).all()


@given(st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12))
def test_scale_does_not_matter_and_the_mean_is_inside(weights):
    w = torch.tensor(weights, dtype=torch.float64) + 1e-3
    a, b = C.match_moments(w, C.grid(3, 4)), C.match_moments(7 * w, C.grid(3, 4))
    torch.testing.assert_close(a.covariance, b.covariance)
    assert ((a.mean > 0) & (a.mean < 1)).all()
    assert torch.linalg.eigvalsh(a.covariance).min() >= 1 / 16 / 12 - 1e-9


def test_errors():
    with pytest.raises(ValueError, match="weights: got shape"):
        C.match_moments(torch.rand(2, 5), C.line(4))
    with pytest.raises(ValueError, match="weights: got a negative entry"):
        C.match_moments(-torch.rand(4), C.line(4))
    with pytest.raises(ValueError, match="weights: got NaN"):
        C.match_moments(torch.full((4,), torch.nan), C.line(4))
    with pytest.raises(TypeError, match="mask: got"):
        C.match_moments(torch.rand(4), C.line(4), mask=torch.ones(4))
    with pytest.raises(ValueError, match="floor: got -1"):
        C.from_cholesky(torch.zeros(2), torch.eye(2), floor=-1)
