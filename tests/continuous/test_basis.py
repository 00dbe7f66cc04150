"""Every basis under every density: against adaptive integration, and gradcheck."""

import math

import numpy as np
import pytest
import torch
from reference.continuous import ball_expectation, gaussian_expectation, normal_pdf, paraboloid_pdf

from regard import continuous as C

CENTRES_2 = torch.tensor([[0.2, 0.3], [0.5, 0.5], [0.9, 0.1], [0.4, 0.8]], dtype=torch.float64)
CENTRES_1 = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.float64)
FULL = torch.tensor([[0.02, 0.005], [0.005, 0.01]], dtype=torch.float64)
EACH = torch.stack([FULL, FULL.flip(0, 1), 3 * FULL, torch.eye(2, dtype=torch.float64) * 0.05])

BASES = {
    "gaussian 1": C.GaussianBasis(CENTRES_1, 0.01),
    "gaussian 2 isotropic": C.GaussianBasis(CENTRES_2, 0.01),
    "gaussian 2 full": C.GaussianBasis(CENTRES_2, FULL),
    "gaussian 2 each": C.GaussianBasis(CENTRES_2, EACH),
    "paraboloid 1": C.ParaboloidBasis(CENTRES_1, 0.02),
    "paraboloid 2": C.ParaboloidBasis(CENTRES_2, FULL),
    "paraboloid 2 each": C.ParaboloidBasis(CENTRES_2, EACH),
    "fourier 1": C.FourierBasis.on_line(5),
    "fourier 2": C.FourierBasis.on_grid(3, 4),
    "fourier 3": C.FourierBasis(torch.tensor([[0.0, 1, 2], [3, 1, 1], [0, 0, 0]])),
}
ALPHAS = [1, 2, 1.5, 4 / 3]


def parameters(d: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(d)
    mean = torch.rand(d, generator=generator, dtype=torch.float64)
    factor = 0.2 * torch.randn(d, d, generator=generator, dtype=torch.float64).tril(-1)
    return mean, factor + torch.diag(0.1 + 0.1 * torch.rand(d, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_expectation(name, alpha):
    basis = BASES[name]
    mean, factor = parameters(basis.dimensions)
    density = C.from_cholesky(mean, factor, alpha)

    def psi(t, _):
        return basis(torch.from_numpy(t)).numpy()

    # Truncated functions have kinks, which adaptive integration finds hard, and three dimensions are many.
    tolerance = 1e-9 if "paraboloid" not in name and basis.dimensions < 3 else 1e-5
    if alpha == 1:
        expected = gaussian_expectation(psi, mean, density.covariance, tolerance)
    else:
        expected = ball_expectation(psi, mean, density.covariance, density.power, tolerance)
    error = np.abs(density.expect(basis).numpy() - expected).max() / np.abs(expected).max()
    assert error <= (1e-7 if tolerance == 1e-9 else 3e-5)
    single = C.from_cholesky(mean.float(), factor.float(), alpha).expect(basis)
    assert single.dtype == torch.float32
    assert np.abs(single.numpy() - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradcheck_in_mean_and_covariance(name, alpha):
    basis = BASES[name]
    mean, factor = parameters(basis.dimensions)
    chords = 400 if "paraboloid 2" in name and alpha != 1 else None

    def expectation(mean, factor):
        return C.from_cholesky(mean, factor, alpha).expect(basis, chords)

    inputs = (mean.requires_grad_(), factor.requires_grad_())
    assert torch.autograd.gradcheck(expectation, inputs, atol=3e-5 if chords else 1e-5, rtol=1e-4)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradcheck_in_the_weights(alpha):
    weights = torch.rand(2, 12, dtype=torch.float64, requires_grad=True)
    basis = C.GaussianBasis.on_grid(2, 3, variance=0.02)
    assert torch.autograd.gradcheck(lambda w: C.match_moments(w, C.grid(3, 4), alpha).expect(basis), weights)


def test_gradients_are_expectations_of_derivatives():
    """Equation (5.11), with derivatives of the basis by autograd and expectations by adaptive integration."""
    basis = BASES["gaussian 2 full"]
    mean, factor = parameters(2)
    covariance = factor @ factor.mT
    inputs = (mean.clone().requires_grad_(), covariance.clone().requires_grad_())
    for j in range(len(basis)):
        r = C.Paraboloid(*inputs).expect(basis)[j]
        by_mean, by_covariance = torch.autograd.grad(r, inputs)
        slope = torch.func.vmap(torch.func.grad(lambda t, j=j: basis(t)[j]))
        bend = torch.func.vmap(torch.func.jacrev(torch.func.grad(lambda t, j=j: basis(t)[j])))
        expected = ball_expectation(lambda t, _, f=slope: f(torch.from_numpy(t)).numpy(), mean, covariance, 1, 1e-9)
        np.testing.assert_allclose(by_mean.numpy(), expected, atol=1e-9 + 1e-6 * np.abs(expected).max())
        # p* is proportional to (1 - |u|^2)^2 on the same ellipse, whose covariance is therefore smaller: 6 against 8.
        second = ball_expectation(
            lambda t, _, f=bend: f(torch.from_numpy(t)).numpy(), mean, covariance * 6 / 8, 2, 1e-9
        )
        np.testing.assert_allclose(by_covariance.numpy(), second / 2, atol=1e-9 + 1e-6 * np.abs(second).max())


def test_evaluation():
    """Equations (5.8), (5.10) and (5.12)."""
    t = torch.rand(50, 2, dtype=torch.float64)
    found = BASES["gaussian 2 each"](t)
    np.testing.assert_allclose(found, normal_pdf(t.numpy(), CENTRES_2.numpy(), EACH.numpy()), rtol=1e-12)
    found = BASES["paraboloid 2 each"](t)
    for j in range(4):
        # The thesis gives Sigma = 9 pi |Var|^(1/2) Var, equation (5.6).
        sigma = 9 * math.pi * EACH[j].det().sqrt() * EACH[j]
        expected = paraboloid_pdf(t.numpy(), CENTRES_2[j].numpy(), sigma.numpy())
        np.testing.assert_allclose(found[:, j], expected, rtol=1e-9, atol=1e-12)
    x, y = t.unbind(-1)
    waves = BASES["fourier 2"](t)
    torch.testing.assert_close(waves[:, 0], torch.ones_like(x))
    torch.testing.assert_close(waves[:, 2 * 4 + 3], 2 * torch.cos(3 * torch.pi * x) * torch.cos(2 * torch.pi * y))


def test_shapes_of_covariance_agree():
    t = torch.rand(5, 2)
    by_number = C.GaussianBasis(CENTRES_2, 0.02)(t)
    for same in (
        torch.full((2,), 0.02),
        0.02 * torch.eye(2),
        torch.full((4, 2), 0.02),
        0.02 * torch.eye(2).expand(4, 2, 2),
    ):
        torch.testing.assert_close(C.GaussianBasis(CENTRES_2, same)(t), by_number)


def test_one_function_and_rectangles():
    assert C.GaussianBasis.on_grid(1, 1).centres.tolist() == [[0.5, 0.5]]
    basis = C.GaussianBasis.on_grid(2, 3)
    assert basis.centres[:4].tolist() == [[0, 0], [0.5, 0], [1, 0], [0, 1]]
    assert basis.covariance[0].diagonal().tolist() == [0.3**2, 0.6**2]


def test_batches_of_any_shape():
    density = C.match_moments(torch.rand(3, 1, 5, 16), C.grid(4, 4), alpha=2)
    for basis in (BASES["gaussian 2 each"], BASES["paraboloid 2"], BASES["fourier 2"]):
        r = density.expect(basis)
        assert r.shape == (3, 1, 5, len(basis))
        one = C.Paraboloid(density.mean[2, 0, 4], density.covariance[2, 0, 4]).expect(basis)
        torch.testing.assert_close(r[2, 0, 4], one)


def test_errors():
    with pytest.raises(ValueError, match=r"covariance: got shape \(3,\)"):
        C.GaussianBasis(CENTRES_2, torch.ones(3))
    with pytest.raises(ValueError, match="covariance: got a variance <= 0"):
        C.GaussianBasis(CENTRES_2, 0.0)
    with pytest.raises(ValueError, match="centres: got a tensor with gradient"):
        C.GaussianBasis(CENTRES_2.clone().requires_grad_(), 0.1)
    with pytest.raises(ValueError, match="numbers: got shape"):
        C.FourierBasis(torch.ones(3))
    with pytest.raises(ValueError, match="basis: got a basis in 1 dimensions"):
        C.Gaussian(torch.zeros(2), torch.eye(2)).expect(BASES["fourier 1"])
    solid = C.GaussianBasis(torch.rand(3, 3), 0.1)
    with pytest.raises(ValueError, match="in 3 dimensions"):
        C.Paraboloid(torch.zeros(3), torch.eye(3)).expect(solid)
    assert C.Gaussian(torch.zeros(3), torch.eye(3)).expect(solid).shape == (3,)


def test_a_second_derivative_through_quadrature_raises():
    mean = torch.zeros(2, requires_grad=True)
    r = C.Paraboloid(mean, torch.eye(2)).expect(BASES["gaussian 2 full"])
    (slope,) = torch.autograd.grad(r.sum(), mean, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        (slope.sum() + mean.sum()).backward()
    twice = C.Paraboloid(mean, torch.eye(2)).expect(BASES["fourier 2"])
    (slope,) = torch.autograd.grad(twice.sum(), mean, create_graph=True)
    slope.sum().backward()
    assert mean.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [1, 2])
def test_vmap_and_func_grad(alpha):
    weights = torch.rand(4, 12, dtype=torch.float64)
    cells, basis = C.grid(3, 4), C.GaussianBasis.on_grid(2, 3, variance=0.02)

    def total(w):
        return C.match_moments(w, cells, alpha).expect(basis).square().sum()

    together = torch.func.vmap(total)(weights)
    torch.testing.assert_close(together, torch.stack([total(w) for w in weights]))
    leaf = weights.clone().requires_grad_()
    (expected,) = torch.autograd.grad(sum(total(w) for w in leaf), leaf)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(weights), expected)
