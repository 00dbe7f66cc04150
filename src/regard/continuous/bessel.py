"""The characteristic function of a truncated paraboloid and of its relatives: a Bessel function, differentiable.

torch has J_0 and J_1, and no gradient for them. Everything here is in terms of

    Lambda_n(z) = Gamma(n + 1) (2 / kappa)^n J_n(kappa),   z = kappa^2,                                        (5.19)

which is one at zero, smooth in z, and closed under differentiation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.continuous.nodes import edge_of, gauss_legendre, log_of_squared_cosine

# The kappa from which the upward recurrence replaces the alternating power series, and the terms of that series.
# torch's J_0 and J_1 are accurate to 1e-7 only, in float64 too, so float64 starts the recurrence from Hankel's
# expansion, which needs a larger kappa.
_SERIES_UP_TO = {torch.float32: (6.0, 24), torch.float64: (14.0, 50)}
# Orders from which Poisson's integral replaces both, its nodes, and the standard deviations that they cover. Its weight
# is then so narrow that the cosine turns at most twenty times inside, wherever the result is not negligible.
_LARGE_ORDER, _NODES, _POISSON_REACH = 12.0, 96, 8.0


def normalised_bessel(z: Tensor, order: float) -> Tensor:
    """Lambda_n(z) of equation (5.19) for any order n >= 0.

    `z` (...) >= 0 -> (...). Differentiable any number of times, in closed form: dLambda_n / dz = -Lambda_(n+1) /
    (4 (n + 1)). There is no singularity at z = 0.

    >>> normalised_bessel(torch.tensor([0.0, 1.0]), 0.5)          # sin(kappa) / kappa
    tensor([1.0000, 0.8415])
    """
    result: Tensor = _NormalisedBessel.apply(z, order)
    return result


class _NormalisedBessel(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, order: float) -> Tensor:
        if order >= _LARGE_ORDER:
            return _poisson(z.double(), order).to(z.dtype)
        if z.dtype == torch.float32 and (order > 6 or (2 * order) % 1):
            return _series_or_recurrence(z.double(), order).float()
        return _series_or_recurrence(z, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        z, ctx.order = inputs
        ctx.save_for_backward(z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return grad * normalised_bessel(z, ctx.order + 1) / (-4 * (ctx.order + 1)), None


def _series_or_recurrence(z: Tensor, order: float) -> Tensor:
    kappa, terms = _SERIES_UP_TO[z.dtype]
    series = _series(z.clamp_max(kappa**2), order, terms)
    return torch.where(z < kappa**2, series, _recurrence(z.clamp_min(kappa**2), order))


def _series(z: Tensor, order: float, terms: int) -> Tensor:
    """Horner's rule for sum_m (-z/4)^m / (m! (n+1) ... (n+m))."""
    total = torch.ones_like(z)
    for m in range(terms, 0, -1):
        total = 1 - z * total / (4 * m * (order + m))
    return total


def _recurrence(z: Tensor, order: float) -> Tensor:
    """Upwards from two orders below two, n and n + 1: Lambda_(n+1) = 4 n (n+1) (Lambda_n - Lambda_(n-1)) / z."""
    kappa = z.sqrt()
    fraction, steps = order % 1, int(order)
    if fraction == 0.5:
        previous, current, n = kappa.cos(), kappa.sin() / kappa, 0.5
    else:
        n, steps = fraction + 1, steps - 1
        previous, current = (math.gamma(m + 1) * (2 / kappa) ** m * _hankel(kappa, m) for m in (n - 1, n))
    if steps < 0:
        return previous
    for _ in range(steps):
        previous, current, n = current, 4 * n * (n + 1) * (current - previous) / z, n + 1
    return current


def _hankel(kappa: Tensor, order: float) -> Tensor:
    """J_n, 0 <= n < 2, large kappa: sqrt(2 / (pi kappa)) (P cos(chi) - Q sin(chi)), chi = kappa - (2 n + 1) pi / 4."""
    if kappa.dtype == torch.float32:
        bessel: Tensor = torch.special.bessel_j0(kappa) if order == 0 else torch.special.bessel_j1(kappa)
        return bessel
    term = torch.ones_like(kappa)
    real, imaginary = torch.ones_like(kappa), torch.zeros_like(kappa)
    for m in range(1, 27):
        term = term * ((4 * order**2 - (2 * m - 1) ** 2) / (8 * m)) / kappa
        sign = 1 if m % 4 in (0, 1) else -1
        if m % 2:
            imaginary = imaginary + sign * term
        else:
            real = real + sign * term
    chi = kappa - (2 * order + 1) * math.pi / 4
    return (2 / (math.pi * kappa)).sqrt() * (real * chi.cos() - imaginary * chi.sin())


def _poisson(z: Tensor, order: float) -> Tensor:
    """The mean of cos(kappa s) under (1 - s^2)^(n - 1/2), by nodes in the angle of s; zero where it is below 1e-11.

    That is Poisson's integral. The order is at least _LARGE_ORDER, and z is in float64.
    """
    x, w = gauss_legendre(_NODES, z)
    angle = math.asin(edge_of(order - 0.5, _POISSON_REACH)) * x
    sine = angle.sin()
    weight = w * torch.exp(order * log_of_squared_cosine(sine))
    # Lambda is at most exp(-z / (4 n + 4)) up to its first zero, and Gamma(n + 1) (2 / kappa)^n far beyond.
    out_of_reach = z > 480 * (order + 1)
    kappa = z.masked_fill(out_of_reach, 0).sqrt()
    return ((kappa.unsqueeze(-1) * sine).cos() @ (weight / weight.sum())).masked_fill(out_of_reach, 0)
