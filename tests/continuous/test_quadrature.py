"""The chord rule against adaptive integration, on weights that attention really produces."""

import numpy as np
import pytest
import torch
from reference.continuous import ball_expectation, cases, normal_pdf

from regard import continuous as C
from regard import native
from regard.continuous import chord, quadrature

VARIANCE = 1e-3


# Thin slanted ellipses take adaptive integration half a minute with 100 functions; 49 will do for them.
SLOW = ("two corners", "diagonal")


@pytest.mark.parametrize(("name", "side"), [(n, s) for n in cases() for s in (7, 10) if s == 7 or n not in SLOW])
def test_forward_and_gradient_in_the_weights(name, side):
    """Errors are relative to the largest entry of r, and to each entry above a hundredth of it."""
    weights, cells = cases()[name].requires_grad_(), C.grid(14, 14)
    density = C.match_moments(weights, cells, alpha=2)
    basis = C.GaussianBasis.on_grid(side, side, variance=VARIANCE)
    centres, covariances = basis.centres.numpy(), basis.covariance.numpy()
    upstream = torch.randn(side**2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def everything(t, u):
        psi = normal_pdf(t, centres, covariances)
        weighted = psi * upstream.numpy()
        grad = (weighted @ centres - weighted.sum(-1, keepdims=True) * t) / VARIANCE
        # Scaled like psi, so that one tolerance is right for all.
        return np.concatenate([psi, 0.03 * grad, (0.03 * grad[:, None] * u[..., None]).reshape(-1, 4)], -1)

    found = ball_expectation(everything, density.mean.detach(), density.covariance.detach(), 1, 3e-9)
    r, slope, cross = map(torch.from_numpy, np.split(found, [side**2, side**2 + 2]))
    largest = r.max()
    ours = density.expect(basis)
    error = (ours - r).abs()
    assert error.max() <= 1e-6 * largest
    assert (error / r)[r > 1e-2 * largest].max() <= 1e-6
    single = C.match_moments(weights.detach().float(), cells, alpha=2).expect(basis)
    assert (single - r).abs().max() <= 1e-4 * largest

    # The same moments through a Cholesky factor: dr = E[grad psi . (dmu + dA u)], another formula than the library's.
    factor = torch.linalg.cholesky(6 * density.covariance)
    surrogate = (slope @ density.mean + (cross.reshape(2, 2).mT * factor).sum()) / 0.03
    (expected,) = torch.autograd.grad(surrogate, weights, retain_graph=True)
    (gradient,) = torch.autograd.grad(ours @ upstream, weights)
    assert (gradient - expected).abs().max() <= 1e-5 * expected.abs().max()
    narrow = weights.detach().float().requires_grad_()
    (gradient,) = torch.autograd.grad(C.match_moments(narrow, cells, alpha=2).expect(basis) @ upstream.float(), narrow)
    assert (gradient - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("size", [0.01, 0.3, 1.4, 1.6, 5.0, 30.0])
def test_ellipses_from_points_to_planes(power, size):
    """Equation (5.13) where the series takes over and far from it, long axis `size` in units of the basis function."""
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    covariance = turn @ torch.diag(torch.tensor([1.0, 0.1], dtype=torch.float64)) @ turn.mT * size**2 / (2 * power + 4)
    mean = torch.tensor([0.1, -0.2], dtype=torch.float64)
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.5], [size, 0.0], [0.0, -size], [9.0, 9.0]], dtype=torch.float64)
    alpha = 1 + 1 / power
    r = ball_expectation(lambda t, u: normal_pdf(t, centres.numpy(), np.eye(2)[None]), mean, covariance, power)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
        basis = C.GaussianBasis(centres, 1.0)
        found = C.BetaGaussian(mean.to(dtype), covariance.to(dtype), alpha).expect(basis)
        assert np.abs(found.numpy() - r).max() <= tolerance * r.max()


def test_chord_integrals_meet_where_the_series_hands_over():
    """Equations (5.14) to (5.16): closed form and series agree at the border, for every power in use."""
    delta = torch.linspace(-6, 6, 25, dtype=torch.float64)
    h = torch.full_like(delta, chord.SHORT)
    for p, q in ((1, 1), (1, 2), (2, 3), (3, 4)):
        for a, b in zip(chord.closed_form(delta, h, p, q), chord.series(delta, h, p, q), strict=True):
            assert (a - b).abs().max() < 1e-9 * b.abs().max()


def test_chord_integrals_are_what_they_say():
    """(5.14) by Gauss-Legendre with many nodes."""
    x, w = quadrature.gauss_legendre(80, torch.zeros((), dtype=torch.float64))
    delta, h = 0.7, 2.3
    y = delta + h * x
    for p, q in ((1, 2), (2, 2), (3, 4)):
        found = chord.closed_form(*torch.tensor([delta, h], dtype=torch.float64), p, q)
        kernel = w * chord.normal(y)
        expected = [
            ((1 - x**2) ** p * kernel).sum(),
            ((1 - x**2) ** p * y * kernel).sum(),
            ((1 - x**2) ** q * kernel).sum(),
            ((1 - x**2) ** q * y * kernel).sum(),
            ((1 - x**2) ** q * (y**2 - 1) * kernel).sum(),
        ]
        torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("nodes", [1, 2, 5, 32])
def test_gauss_legendre(nodes):
    x, w = quadrature.gauss_legendre(nodes, torch.zeros((), dtype=torch.float64))
    expected = np.polynomial.legendre.leggauss(nodes)
    np.testing.assert_allclose(x.flip(0).numpy(), expected[0], atol=1e-14)
    np.testing.assert_allclose(w.flip(0).numpy(), expected[1], atol=1e-14)


def test_large_batches_are_cut_into_blocks(monkeypatch):
    density = C.match_moments(torch.rand(40, 196), C.grid(14, 14), alpha=2)
    basis = C.GaussianBasis.on_grid(4, 4, variance=1e-3)
    whole = density.expect(basis)
    monkeypatch.setattr(quadrature, "_BLOCK", 1000)
    torch.testing.assert_close(density.expect(basis), whole)


def test_more_chords_can_be_asked_for():
    density = C.match_moments(torch.rand(3, 196, dtype=torch.float64), C.grid(14, 14), alpha=2)
    basis = C.GaussianBasis.on_grid(10, 10, variance=1e-3)
    exact = density.expect(basis, chords=200)
    few, default = density.expect(basis, chords=6), density.expect(basis)
    assert (few - exact).abs().max() > 1e-3 > 1e-5 > (default - exact).abs().max()
    with pytest.raises(ValueError, match="chords: got 0"):
        density.expect(basis, chords=0)
    with pytest.raises(ValueError, match="closed form"):
        C.match_moments(torch.rand(3, 196), C.grid(14, 14)).expect(basis, chords=10)


@pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")
def test_a_thin_ellipse_is_left_to_torch():
    y, thin = torch.zeros(3, 17, 1), torch.full((3, 1, 1), 0.5)
    assert quadrature._by_kernel([y, y, thin + 1, thin + 1], 1, 20, 5.0) is not None
    assert quadrature._by_kernel([y, y, thin + 1, thin], 1, 20, 5.0) is None
