"""The deformed exponential and logarithm, and escort distributions: equations (5.32) and (5.33)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.continuous.density import Elliptical, Gaussian
from regard.continuous.locations import working_dtype
from regard.continuous.truncated import BetaGaussian, PearsonTypeII


def exp_beta(u: Tensor, beta: float) -> Tensor:
    """The beta-exponential [1 + (1 - beta) u]_+^(1 / (1 - beta)), exp(u) for beta = 1: equation (5.32).

    The map of a score f is exp_beta(f - A) with beta = 2 - alpha. `u` (...) of any sign, `beta` any number. For beta
    below one the result is exactly zero up to u = -1/(1 - beta); above one it is infinite from u = 1/(beta - 1) on.
    Differentiable in u; where the result is zero or infinite the gradient is zero.

    >>> exp_beta(torch.tensor([-2.0, 0.0, 1.0]), 0)
    tensor([0., 1., 2.])
    """
    _check.floating("u", u)
    _check.finite("u", u)
    _check.number("beta", beta)
    if beta == 1:
        return u.exp()
    x = u.to(working_dtype(u.dtype)) * (1 - beta)
    outside = x <= -1
    # log1p keeps the digits as beta goes to one.
    result = torch.exp(torch.log1p(x.masked_fill(outside, 0)) / (1 - beta))
    return result.masked_fill(outside, 0.0 if beta < 1 else math.inf).to(u.dtype)


def log_beta(u: Tensor, beta: float) -> Tensor:
    """The beta-logarithm (u^(1 - beta) - 1) / (1 - beta), log(u) for beta = 1: equation (5.32).

    The inverse of `exp_beta`. `u` (...) nonnegative, `beta` any number. At zero it is -1/(1 - beta) for beta below one
    and -inf otherwise, and the gradient is taken as zero there. Differentiable in u.

    >>> log_beta(torch.tensor([0.0, 1.0, 2.0]), 0)
    tensor([-1.,  0.,  1.])
    """
    _check.floating("u", u)
    _check.nonnegative("u", u)
    _check.number("beta", beta)
    zero = u == 0
    logs = u.to(working_dtype(u.dtype)).masked_fill(zero, 1).log()
    if beta == 1:
        return logs.masked_fill(zero, -math.inf).to(u.dtype)
    result = torch.expm1((1 - beta) * logs) / (1 - beta)
    return result.masked_fill(zero, 1 / (beta - 1) if beta < 1 else -math.inf).to(u.dtype)


def escort(density: Elliptical, beta: float) -> Elliptical:
    """The escort distribution, proportional to p(t)^beta: equation (5.33).

    `density`: a Gaussian, whose escort is a Gaussian with its covariance divided by beta; or a truncated density with
    power p, whose escort has the power beta p on the same support: uniform for beta = 0.
    `beta`: above 0 for a Gaussian; beta p must be above -1 for a truncated density. With beta = 2 - alpha it is the
    distribution of the Jacobian (5.7).

    Differentiable in the parameters of the density.

    >>> from regard.continuous import Paraboloid
    >>> uniform = escort(Paraboloid(torch.zeros(1), torch.eye(1) / 5), 0)
    >>> uniform.power, uniform.covariance
    (0.0, tensor([[0.3333]]))
    """
    _check.number("beta", beta)
    if isinstance(density, Gaussian):
        if beta <= 0:
            _check.complain("beta", beta, "a number > 0 for a Gaussian", "Other powers have no integral.")
        return Gaussian(density.mean, density.covariance / beta)
    if not isinstance(density, PearsonTypeII):
        got = type(density).__name__
        _check.complain("density", got, "a Gaussian or a truncated density", "A mixture has none.", TypeError)
    if beta == 1:
        return density
    power, d = beta * density.power, density.event_shape[0]
    if power <= -1:
        expected = f"a number > {-1 / density.power:g}, as the power of this density is {density.power:g}"
        _check.complain("beta", beta, expected, "Other powers have no integral.")
    covariance = density.covariance * ((d + 2 * density.power + 2) / (d + 2 * power + 2))
    # The same support, and a family with an alpha where there is one.
    if power >= 0.5:
        return BetaGaussian(density.mean, covariance, 1 + 1 / power)
    return PearsonTypeII(density.mean, covariance, power)
