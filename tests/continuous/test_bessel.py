import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import torch

from regard.continuous._gamma import ball_constant
from regard.continuous.bessel import normalised_bessel


@pytest.mark.parametrize(
    "order", [0, 0.2, 0.5, 1, 1.37, 1.5, 2, 2.5, 3, 4, 4.5, 6, 7.7, 11.9, 12, 12.5, 21.5, 150.3, 3000.0]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 5e-6)])
def test_against_scipy(order, dtype, tolerance):
    """Equation (5.19), from zero to far beyond where the series hands over, for orders of every size."""
    kappa = torch.linspace(0, 150 + 3 * order, 3001 if order < 20 else 61, dtype=dtype)
    x = kappa[1:].double().numpy()
    if order < 20:
        expected = math.gamma(order + 1) * (2 / x) ** order * scipy.special.jv(order, x)
    else:  # jv underflows: the mean of a cosine, by adaptive integration
        weight = lambda s: (1 - s * s) ** (order - 0.5)  # noqa: E731
        end, total = 10 / math.sqrt(order), scipy.integrate.quad(weight, 0, min(1, 10 / math.sqrt(order)))[0]
        wave = lambda k: scipy.integrate.quad(weight, 0, min(1, end), weight="cos", wvar=k, epsabs=1e-14)[0]  # noqa: E731
        expected = np.array([wave(k) for k in x]) / total
    found = normalised_bessel(kappa**2, order)
    assert abs(found[0] - 1) < 1e-15
    assert np.abs(found[1:].double().numpy() - expected).max() < tolerance


@pytest.mark.parametrize("order", [0.5, 1, 1.7, 2, 2.5, 20.3])
def test_derivatives(order):
    z = torch.tensor([0.0, 1e-8, 3.0, 195.0, 197.0, 900.0], dtype=torch.float64)
    z = (z + 1e-3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: normalised_bessel(z, order), z)
    assert torch.autograd.gradgradcheck(lambda z: normalised_bessel(z, order), z)
    at_zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(normalised_bessel(at_zero, order), at_zero)
    assert slope == -1 / (4 * (order + 1))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("power", [-0.5, 0, 0.5, 1, 2, 2.7, 3, 50])
def test_ball_constant(d, power):
    """Equation (5.5): the density on the ball integrates to one, over shells."""
    shell = scipy.integrate.quad(lambda r: d * r ** (d - 1) * (1 - r * r) ** power, 0, 1)[0]
    volume = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
    assert math.isclose(ball_constant(d, power) * shell * volume, 1, rel_tol=1e-9)
