import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.continuous import ball_expectation, gaussian_expectation, paraboloid_pdf

from regard import continuous as C
from regard.continuous import _small

ALPHAS = [1, 2, 1.5, 4 / 3]
MEAN = torch.tensor([0.3, -0.2], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)


def make(alpha, d=2):
    return C.from_cholesky(MEAN[:d], torch.linalg.cholesky(COVARIANCE[:d, :d]), alpha)


def square(count, d, reach=4.0):
    """Centres of a fine grid over [-reach, reach]^d and the volume of one of its cells."""
    axis = (torch.arange(count, dtype=torch.float64) + 0.5) * (2 * reach / count) - reach
    return torch.cartesian_prod(*[axis] * d).reshape(-1, d), (2 * reach / count) ** d


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_mass_mean_covariance_and_entropy_by_brute_force(alpha, d):
    """Equations (5.3) to (5.6) and (5.29)."""
    density = make(alpha, d)
    t, cell = square(2000 if d == 1 else 700, d)
    p = density.pdf(t) * cell
    offset = t - density.mean
    tolerance = 1e-4
    assert abs(p.sum() - 1) < tolerance
    torch.testing.assert_close(p @ t, density.mean, atol=tolerance, rtol=0)
    torch.testing.assert_close((p[:, None] * offset).mT @ offset, density.covariance, atol=tolerance, rtol=0)
    assert abs(-(p * (p / cell).clamp_min(1e-300).log()).sum() - density.entropy()) < 1e-3


@pytest.mark.parametrize("d", [1, 2])
def test_theorem_1_and_the_thesis_formulas(d):
    """Equation (5.6): Sigma from Var for alpha = 2, against the printed forms and the printed density."""
    density = make(2, d)
    var = density.covariance
    printed = 2 / 3 * (5 * var) ** 1.5 if d == 1 else 9 * math.pi * var.det().sqrt() * var
    torch.testing.assert_close(density.scale, printed)
    general = var * var.det().sqrt() * (d / 2 + 2) ** (1 + d / 2) * (2 * math.pi) ** (d / 2) / math.gamma(d / 2 + 2)
    torch.testing.assert_close(density.scale, general)
    t, _ = square(31, d, 2.0)
    expected = paraboloid_pdf(t.numpy(), density.mean.numpy(), density.scale.numpy())
    np.testing.assert_allclose(density.pdf(t).numpy(), expected, atol=1e-12)
    lam = -((math.gamma(d / 2 + 2) / (2 * math.pi * density.scale).det().sqrt()) ** (2 / (2 + d)))
    torch.testing.assert_close(var, -lam * density.scale / (d / 2 + 2))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_solves_the_regularised_problem(alpha):
    """Equation (5.1): no other density on a grid has a larger E[f] - Omega_alpha."""
    density = make(alpha, 1)
    sigma = density.covariance if alpha == 1 else density.scale
    t, cell = square(4000, 1)
    f = -0.5 * ((t - density.mean) ** 2 / sigma).squeeze(-1)

    def objective(p):
        if alpha == 1:
            return ((p * f - p * p.clamp_min(1e-300).log()) * cell).sum()
        return ((p * f - (p**alpha) / (alpha * (alpha - 1))) * cell).sum()

    ours = density.pdf(t)
    ours = ours / (ours.sum() * cell)
    best = objective(ours)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(20):
            other = ours * (1 + size * torch.randn(len(t), generator=generator, dtype=torch.float64)).clamp_min(0)
            assert objective(other / (other.sum() * cell)) < best
    for stretch in (0.8, 0.95, 1.05, 1.2):
        other = C.from_cholesky(density.mean, stretch * density.covariance.sqrt(), alpha).pdf(t)
        assert objective(other / (other.sum() * cell)) < best


@pytest.mark.parametrize("alpha", ALPHAS)
def test_canonical_parameters(alpha):
    density = make(alpha)
    sigma = density.covariance if alpha == 1 else density.scale
    inverse = torch.linalg.inv(sigma)
    back = C.from_canonical(inverse @ MEAN, -inverse / 2, alpha)
    torch.testing.assert_close(back.mean, density.mean)
    torch.testing.assert_close(back.covariance, density.covariance)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_jacobian_in_canonical_parameters_is_the_generalised_covariance(alpha):
    """Equation (5.7), with beta = 2 - alpha: the thesis prints beta = 2 for sparsemax, which is a misprint."""
    density = make(alpha, 1)
    sigma = density.covariance if alpha == 1 else density.scale
    basis = C.GaussianBasis(torch.tensor([[0.0], [0.7]], dtype=torch.float64), 0.3)
    theta = ((MEAN[:1] / sigma[0]).requires_grad_(), (-0.5 / sigma).requires_grad_())
    t, cell = square(200_000, 1)
    escort = density.pdf(t)
    escort = torch.where(escort > 0, escort ** (2 - alpha), 0) * cell
    mass = escort.sum()
    psi = basis(t)
    for j in range(2):
        r = C.from_canonical(*theta, alpha).expect(basis)[j]
        found = torch.stack([g.squeeze() for g in torch.autograd.grad(r, theta)])
        phi = torch.cat([t, t**2], -1)
        mean_phi, mean_psi = escort @ phi / mass, escort @ psi[:, j] / mass
        expected = (escort[:, None] * (phi - mean_phi) * (psi[:, j : j + 1] - mean_psi)).sum(0)
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_samples_have_the_right_moments(alpha, d):
    mean = torch.arange(d, dtype=torch.float64)
    factor = torch.eye(d, dtype=torch.float64) + 0.3 * torch.ones(d, d, dtype=torch.float64).tril(-1)
    density = C.from_cholesky(mean, factor, alpha)
    draws = density.sample((40_000,))
    assert draws.shape == (40_000, d)
    torch.testing.assert_close(draws.mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(draws.mT.cov().reshape(d, d), density.covariance, atol=0.06, rtol=0)
    assert density.log_prob(draws).isfinite().all()
    if alpha != 1:
        assert not density.log_prob(draws).exp().eq(0).any()


def test_rsample_is_differentiable():
    mean, factor = MEAN.clone().requires_grad_(), torch.eye(2, dtype=torch.float64).requires_grad_()
    for alpha in ALPHAS:
        grads = torch.autograd.grad(C.from_cholesky(mean, factor, alpha).rsample((5,)).square().sum(), (mean, factor))
        assert all(g.abs().sum() > 0 for g in grads)


@pytest.mark.parametrize("alpha", [2, 1.5, 4 / 3])
def test_support_is_where_the_density_is_positive(alpha):
    density = make(alpha)
    centre, axes, angle = density.support
    turn = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]], dtype=torch.float64)
    around = torch.linspace(0, 2 * torch.pi, 50, dtype=torch.float64)
    circle = torch.stack([around.cos(), around.sin()], -1)
    edge = lambda k: centre + (k * axes * circle) @ turn.mT  # noqa: E731
    assert density.pdf(edge(0.999)).min() > 0
    assert density.pdf(edge(1.001)).max() == 0
    low, high = make(alpha, 1).support
    ends = torch.stack([low + 1e-6, high - 1e-6, low - 1e-6, high + 1e-6]).unsqueeze(-1)
    assert (make(alpha, 1).pdf(ends) > 0).tolist() == [True, True, False, False]
    assert C.Gaussian(MEAN, COVARIANCE).support.axes.isinf().all()


def test_support_has_a_gradient_even_for_a_circle():
    covariance = torch.eye(2, dtype=torch.float64, requires_grad=True)
    support = C.Paraboloid(MEAN, covariance).support
    (support.axes.sum() + support.angle).backward()
    assert covariance.grad.isfinite().all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_pdf_and_entropy_gradcheck(alpha):
    t = torch.tensor([[0.1, 0.0], [0.5, -0.3], [9.0, 9.0]], dtype=torch.float64)
    factor = torch.linalg.cholesky(COVARIANCE).requires_grad_()
    mean = MEAN.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda m, f: C.from_cholesky(m, f, alpha).pdf(t), (mean, factor))
    assert torch.autograd.gradcheck(lambda f: C.from_cholesky(MEAN, f, alpha).entropy(), factor)


def test_pdf_broadcasts():
    batch = C.Gaussian(torch.zeros(3, 4, 2), torch.eye(2).expand(3, 4, 2, 2))
    assert batch.pdf(torch.rand(7, 2)).shape == (3, 4, 7)
    assert batch.pdf(torch.rand(3, 4, 7, 2)).shape == (3, 4, 7)
    assert batch.log_prob(torch.rand(7, 1, 1, 2)).shape == (7, 3, 4)
    assert batch.batch_shape == (3, 4)
    assert batch.event_shape == (2,)
    assert batch.covariance_matrix is batch.covariance
    assert batch.stddev.eq(1).all()


def test_agrees_with_torch_distributions():
    theirs = torch.distributions.MultivariateNormal(MEAN, COVARIANCE)
    ours = C.Gaussian(MEAN, COVARIANCE)
    value = torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())


@given(st.integers(0, 10_000), st.sampled_from(ALPHAS))
def test_expectation_of_a_constant_is_one(seed, alpha):
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    density = C.from_cholesky(torch.randn(2, generator=generator, dtype=torch.float64), factor, alpha, floor=1e-4)
    assert abs(density.expect(C.FourierBasis(torch.zeros(1, 2))).item() - 1) < 1e-12
    # A very wide Gaussian is nearly constant: r ~ psi(mean).
    wide = C.GaussianBasis(torch.zeros(1, 2), 1e8)
    assert abs(density.expect(wide) / wide(density.mean) - 1).item() < 1e-6


def test_three_dimensions():
    density = C.from_cholesky(torch.rand(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64) / 5, 2)
    basis = C.FourierBasis(torch.tensor([[1.0, 2, 0], [0, 1, 1]]))
    psi = lambda t, _: basis(torch.from_numpy(t)).numpy()  # noqa: E731
    expected = ball_expectation(psi, density.mean, density.covariance, 1, 1e-6)
    np.testing.assert_allclose(density.expect(basis), expected, atol=1e-5)
    gaussian = C.Gaussian(density.mean, density.covariance)
    radial = C.GaussianBasis(torch.rand(2, 3, dtype=torch.float64), 0.2)
    psi = lambda t, _: radial(torch.from_numpy(t)).numpy()  # noqa: E731
    expected = gaussian_expectation(psi, gaussian.mean, gaussian.covariance, 1e-6)
    np.testing.assert_allclose(gaussian.expect(radial), expected, rtol=1e-4)


def test_errors():
    with pytest.raises(ValueError, match=r"covariance: got shape \(2, 2\)"):
        C.Gaussian(torch.zeros(3, 2), torch.eye(2))
    with pytest.raises(ValueError, match="covariance: got a variance <= 0"):
        C.Paraboloid(torch.zeros(2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"alpha: got 3\.5"):
        C.BetaGaussian(torch.zeros(2), torch.eye(2), 3.5)
    with pytest.raises(ValueError, match="alpha: got 0"):
        C.match_moments(torch.ones(4), C.line(4), alpha=0)
    with pytest.raises(ValueError, match="mean: got NaN"):
        C.Gaussian(torch.full((2,), math.nan), torch.eye(2))
    with pytest.raises(TypeError, match="mean: got list"):
        C.Gaussian([0.0, 0.0], torch.eye(2))
    with pytest.raises(ValueError, match="support: got 3 dimensions"):
        _ = C.Gaussian(torch.zeros(3), torch.eye(3)).support


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_quadratic_forms(d):
    x, half = torch.randn(7, 1, 4, d, dtype=torch.float64), torch.randn(3, 4, d, d, dtype=torch.float64)
    matrix = half @ half.mT
    expected = torch.einsum(
        "...i,...ij,...j->...", x.expand(7, 3, 4, d), matrix.expand(7, 3, 4, d, d), x.expand(7, 3, 4, d)
    )
    torch.testing.assert_close(_small.quadratic(x, matrix), expected)
