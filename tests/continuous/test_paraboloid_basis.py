"""Truncated paraboloids under densities of every size and shape, values and gradients: equations (5.17) and (5.31)."""

import math

import numpy as np
import pytest
import torch
from reference.continuous import paraboloid_by_rays

from regard import continuous as C
from regard.continuous import overlap, quadrature

SPREAD = torch.tensor([[0.02, 0.005], [0.005, 0.01]], dtype=torch.float64)
CENTRES = torch.tensor([[0.5, 0.5], [0.45, 0.4], [0.9, 0.1]], dtype=torch.float64)
# Inside of the first function, and within a standard deviation or so of its edge on three sides.
OUT = torch.linalg.cholesky(6 * SPREAD)


def edge(angle, radius=1.0):
    """The point of the first function's support at that angle; its edge has radius one."""
    return CENTRES[0] + OUT @ (radius * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64))


def covariance_of(sd, ratio, angle):
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return turn @ torch.diag(torch.tensor([sd**2, (sd / ratio) ** 2], dtype=torch.float64)) @ turn.mT


def compare(mean, covariance, alpha, dtype, tolerances):
    """Value, gradient in the mean and in the covariance, each relative to its largest entry over the functions."""
    basis = C.ParaboloidBasis(CENTRES, SPREAD)
    # The truth is that of the numbers that a float32 density has.
    mean, covariance = mean.to(dtype).double(), covariance.to(dtype).double()
    power = None if alpha == 1 else 1 / (alpha - 1)
    truth = [paraboloid_by_rays(mean, covariance, centre, SPREAD, power) for centre in CENTRES]
    inputs = mean.to(dtype, copy=True).requires_grad_(), covariance.to(dtype, copy=True).requires_grad_()
    r = (C.Gaussian(*inputs) if alpha == 1 else C.BetaGaussian(*inputs, alpha)).expect(basis)
    gradients = [torch.autograd.grad(x, inputs, retain_graph=True) for x in r]
    found = [(x.item(), *(g.double().numpy() for g in pair)) for x, pair in zip(r, gradients, strict=True)]
    for part, tolerance in enumerate(tolerances):
        ours, expected = (np.array([np.asarray(row[part]) for row in rows]) for rows in (found, truth))
        assert np.abs(ours - expected).max() <= tolerance * np.abs(expected).max(), (part, ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sd", [1e-7, 1e-6, 1e-5, 3e-4, 1e-3, 1e-2, 0.1, 1.0])
def test_peaked_gaussians_inside(sd, dtype):
    """Of a Gaussian far inside of a function the expectation and its gradients are those of a quadratic."""
    mean, covariance = torch.tensor([0.52, 0.47], dtype=dtype), covariance_of(sd, 3.0, 0.4).to(dtype)
    if sd > 0.01:
        return compare(mean.double(), covariance.double(), 1, dtype, (1e-6, 1e-6, 1e-6))
    inverse = torch.linalg.inv(6 * SPREAD)
    peak = 2 / math.pi * inverse.det().sqrt()
    inputs = mean.requires_grad_(), covariance.requires_grad_()
    r = C.Gaussian(*inputs).expect(C.ParaboloidBasis(CENTRES[:1], SPREAD))
    slope, curve = torch.autograd.grad(r.sum(), inputs)
    offset = mean.detach().double() - CENTRES[0]
    wide = covariance.detach().double()
    expected = peak * (1 - offset @ inverse @ offset - (inverse * wide).sum())
    torch.testing.assert_close(r[0].double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(slope.double(), -2 * peak * inverse @ offset, rtol=1e-5, atol=0)
    torch.testing.assert_close(curve.double(), -peak * inverse, rtol=1e-6, atol=0)
    return None


@pytest.mark.parametrize("ratio", [1, 5, 100])
@pytest.mark.parametrize("sd", [1e-6, 3e-3, 0.3])
@pytest.mark.parametrize(("angle", "turn"), [(0.0, 0.5), (0.7, 1.3), (1.6, 0.0)])
def test_gaussians_on_the_edge(angle, turn, sd, ratio):
    """Where a density straddles the edge of a function: on its sides and at a tip of its ellipse."""
    mean = edge(angle) + 0.3 * sd / ratio
    compare(mean, covariance_of(sd, ratio, turn), 1, torch.float64, (1e-6, 1e-6, 1e-5))


@pytest.mark.parametrize("ratio", [1, 20, 100])
@pytest.mark.parametrize("sd", [1e-6, 0.03, 0.3])
@pytest.mark.parametrize("alpha", [2, 1.7])
def test_thin_truncated_densities(alpha, sd, ratio):
    """Inside and on the edge of a function; float32 is as right as its numbers are."""
    compare(edge(0.7, 0.3), covariance_of(sd, ratio, 1.3), alpha, torch.float32, (1e-6, 1e-5, 1e-5))
    compare(edge(2.0), covariance_of(sd, ratio, 0.5), alpha, torch.float64, (1e-8, 1e-8, 1e-7))


@pytest.mark.parametrize("alpha", [1, 2])
def test_single_precision_on_the_edge(alpha):
    for sd, ratio in ((3e-4, 20), (0.03, 100)):
        compare(edge(2.0, 0.9), covariance_of(sd, ratio, 0.5), alpha, torch.float32, (1e-6, 1e-5, 1e-5))


def test_one_hot_weights_on_bare_points():
    """The gradient in the covariance decides that in the weights: a quadratic's, at a standard deviation of 1e-7."""
    points = torch.tensor([[0.5, 0.5], [0.3, 0.6], [0.7, 0.4], [0.6, 0.7]], dtype=torch.float64)
    weights = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    basis = C.ParaboloidBasis(torch.tensor([[0.45, 0.55]], dtype=torch.float64), 0.05)
    r = C.match_moments(weights, points).expect(basis)
    (gradient,) = torch.autograd.grad(r.sum(), weights)
    # All of the mass is inside, so that r is the mean of psi at the points: its gradient is psi there, less r.
    expected = basis(points)[:, 0] - basis(points)[0, 0]
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)


def test_blocks(monkeypatch):
    basis, weights = C.ParaboloidBasis.on_grid(4, 4), torch.rand(20, 196)
    whole = [C.match_moments(weights, C.grid(14, 14), alpha).expect(basis) for alpha in (1, 2, 1.7)]
    monkeypatch.setattr(quadrature, "_BLOCK", 700)
    monkeypatch.setattr(overlap, "_NODES_AT_ONCE", 5000)
    for alpha, expected in zip((1, 2, 1.7), whole, strict=True):
        torch.testing.assert_close(C.match_moments(weights, C.grid(14, 14), alpha).expect(basis), expected)
