"""The loss of a density against a region: by numerical integration, by its gradient, and by where it is least."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.continuous import density_loss as integrated
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import continuous as C
from regard import density_loss

ALPHAS = [1, 1.1, 1.5, 2, 2.6, 3]


def make_density(alpha, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean = 0.3 + 0.4 * torch.rand(d, generator=generator, dtype=torch.float64)
    factor = 0.15 * torch.eye(d, dtype=torch.float64) + 0.05 * torch.randn(d, d, generator=generator).double().tril()
    return mean, factor @ factor.mT, C.moments.density_of(mean, factor @ factor.mT, alpha)


def make_target(cells, seed=0):
    return torch.rand(len(cells), generator=torch.Generator().manual_seed(seed)).double().square()


def canonical(density):
    """The score of a density: linear and quadratic."""
    scale = density.covariance if isinstance(density, C.Gaussian) else density.scale
    inverse = torch.linalg.inv(scale)
    return inverse @ density.mean, -inverse / 2


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("cells", [C.line(5), C.grid(3, 4)], ids=["line", "grid"])
def test_numerical_integration(alpha, cells):
    _, _, density = make_density(alpha, cells.dimensions)
    target = make_target(cells)
    expected = integrated(*canonical(density), alpha, target / target.sum(), cells.points, cells.sides)
    assert float(density_loss(density, target, cells)) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("cells", [C.line(5), C.grid(3, 4)], ids=["line", "grid"])
def test_the_gradient_is_a_difference_of_moments(alpha, cells):
    _, _, density = make_density(alpha, cells.dimensions)
    linear, quadratic = (x.detach().requires_grad_() for x in canonical(density))
    again = C.from_canonical(linear, quadratic, alpha)
    torch.testing.assert_close(again.covariance, density.covariance)
    target = make_target(cells)
    region = C.match_moments(target, cells)
    gradients = torch.autograd.grad(density_loss(again, target, cells), (linear, quadratic))

    def second(p):
        return p.covariance + p.mean.unsqueeze(-1) * p.mean.unsqueeze(-2)

    torch.testing.assert_close(gradients[0], again.mean - region.mean)
    torch.testing.assert_close((gradients[1] + gradients[1].mT) / 2, second(again) - second(region))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradcheck_in_the_density_and_the_target(alpha):
    cells = C.grid(2, 3)
    mean, covariance, _ = make_density(alpha, 2)
    factor, target = torch.linalg.cholesky(covariance), make_target(cells) + 0.1

    def loss(mean, factor, target):
        return density_loss(C.from_cholesky(mean, factor, alpha), target, cells)

    inputs = tuple(x.requires_grad_() for x in (mean, factor, target))
    assert gradcheck(loss, inputs)
    assert gradgradcheck(loss, inputs)


@given(alpha=st.sampled_from([1, 1.0001, 1.3, 2, 3]), seed=st.integers(0, 1000), width=st.integers(1, 6))
def test_it_is_least_at_the_moments_of_the_region_and_never_negative(alpha, seed, width):
    cells, generator = C.grid(4, width), torch.Generator().manual_seed(seed)
    region = torch.rand(len(cells), generator=generator) < 0.4
    region[seed % len(cells)] = True
    best = C.match_moments(region.double(), cells, alpha)
    least = density_loss(best, region, cells)
    assert float(least) > 0  # the density of a region has edges, which no score has
    for _ in range(5):
        mean = best.mean + 0.1 * torch.randn(2, generator=generator).double()
        factor = torch.linalg.cholesky(best.covariance) * (1 + 0.3 * torch.randn(2, 2, generator=generator).double())
        other = C.from_cholesky(mean, factor, alpha, floor=1e-6)
        assert float(density_loss(other, region, cells)) >= float(least) - 1e-9


def test_alpha_one_is_the_divergence_and_the_limit():
    cells = C.grid(3, 3)
    mean, covariance, density = make_density(1, 2)
    target = make_target(cells)
    w = target / target.sum()
    normal = torch.distributions.MultivariateNormal(mean, covariance)
    # The mean of log N over a cell, exactly: its value at the middle, less half of tr(Sigma^-1 C).
    inside = torch.trace(torch.linalg.inv(covariance) @ torch.diag(cells.sides.square() / 12)) / 2
    divergence = (w * (w * 9).log()).sum() - (w * (normal.log_prob(cells.points) - inside)).sum()
    torch.testing.assert_close(density_loss(density, target, cells), divergence)
    for alpha in (1 + 1e-4, 1 + 1e-8, 1 + 1e-12):
        near = density_loss(C.moments.density_of(mean, covariance, alpha), target, cells)
        torch.testing.assert_close(near, divergence, rtol=100 * (alpha - 1) + 1e-7, atol=0)
        low = density_loss(C.moments.density_of(mean.float(), covariance.float(), alpha), target, cells)
        torch.testing.assert_close(low.double(), near, rtol=1e-5, atol=1e-5)


def test_a_region_at_twice_the_resolution_is_the_same_region():
    region = torch.rand(3, 4) < 0.5
    fine = region.repeat_interleave(2, 0).repeat_interleave(2, 1)
    for alpha in ALPHAS:
        _, _, density = make_density(alpha, 2)
        coarse = density_loss(density, region.flatten(), C.grid(3, 4))
        torch.testing.assert_close(density_loss(density, fine.flatten(), C.grid(6, 8)), coarse)


def test_a_sparse_density_that_misses_the_region_is_pulled_to_it():
    cells = C.grid(10, 10)
    region = torch.zeros(10, 10, dtype=torch.bool)
    region[:2, 8:] = True
    mean = torch.tensor([0.2, 0.8], dtype=torch.float64, requires_grad=True)
    density = C.Paraboloid(mean, 0.001 * torch.eye(2, dtype=torch.float64))
    assert (density.pdf(cells.points)[region.flatten()] == 0).all()
    density_loss(density, region.flatten(), cells).backward()
    pull = -mean.grad / mean.grad.norm()
    torch.testing.assert_close(pull, torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(2))


def test_batches_empty_regions_and_reductions():
    cells = C.grid(3, 3)
    target = torch.rand(4, 9)
    target[2] = 0
    density = C.match_moments(torch.rand(4, 9), cells, 2)
    each = density_loss(density, target, cells, reduction="none")
    assert each.shape == (4,)
    assert each[2] == 0
    torch.testing.assert_close(density_loss(density, target, cells), each.sum() / 3)
    torch.testing.assert_close(density_loss(density, target, cells, reduction="sum"), each.sum())
    one = density_loss(C.match_moments(torch.rand(9), cells), target, cells, reduction="none")
    assert one.shape == (4,)
    nothing = density_loss(density, torch.zeros(4, 9, dtype=torch.bool), cells)
    assert nothing == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"density": 3}, TypeError, r"^density: got int, expected a Gaussian"),
        ({"locations": C.grid(3, 3).points}, ValueError, r"^locations: got bare points, expected cells"),
        ({"locations": C.line(9)}, ValueError, r"^locations: got 1 dimensions, expected 2"),
        ({"target": torch.ones(3, 3)}, ValueError, r"^target: got shape \(3, 3\), expected 9"),
        ({"target": torch.ones(5, 9)}, ValueError, r"^target: got shape \(5, 9\), expected leading axes"),
        ({"target": -torch.ones(9)}, ValueError, r"^target: got a negative entry"),
        ({"target": torch.ones(9, dtype=torch.long)}, TypeError, r"^target: got torch.int64"),
        ({"reduction": "all"}, ValueError, r"^reduction: got 'all'"),
    ],
)
def test_complaints(change, error, words):
    cells = C.grid(3, 3)
    usual = {"density": C.match_moments(torch.ones(2, 9), cells), "target": torch.ones(9), "locations": cells}
    with pytest.raises(error, match=words):
        density_loss(**usual | change)


def test_mixtures_have_none():
    cells = C.grid(3, 3)
    with pytest.raises(TypeError, match=r"^density: got Mixture"):
        density_loss(C.fit_mixture(torch.rand(9), cells), torch.ones(9), cells)


def test_the_public_name():
    assert regard.density_loss is density_loss
