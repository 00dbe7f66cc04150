"""Integrals of a Gaussian times (h^2 - x^2)^n along a chord: closed form, a series for short chords, nodes for any n.

With phi the standard normal density and delta the middle of the chord, all in standard deviations of the Gaussian:

    D_n = int_-h^h (h^2 - x^2)^n phi(delta + x) dx,   Y_n = -dD_n / d delta,   Z_n = d^2 D_n / d delta^2.
    (5.14)

Here they are divided by h^(2n+1), which keeps them finite for every h.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.continuous.nodes import angles_in_reach, edge_of, gauss_legendre, log_of_squared_cosine

# Half chords shorter than this, in standard deviations, are integrated by the series: the closed form would cancel.
SHORT = 1.5
_TERMS = 14
_ROOT_2PI = math.sqrt(2 * math.pi)

# D_p, Y_p, D_q, Y_q, Z_q
ChordIntegrals = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def normal(x: Tensor) -> Tensor:
    """The standard normal density."""
    return (x.square() * -0.5).exp_() / _ROOT_2PI


def closed_form(delta: Tensor, h: Tensor, p: int, q: int) -> ChordIntegrals:
    """D_p, Y_p, D_q, Y_q, Z_q over h^(2n+1) for 0 <= p <= q, q >= 1, by recurrence from erf: equation (5.15).

    `delta` and `h` broadcast. For h below one the terms cancel.
    """
    above, below = delta + h, delta - h
    upper, lower = normal(above), normal(below)
    mass = (torch.erf(above * math.sqrt(0.5)) - torch.erf(below * math.sqrt(0.5))) * 0.5
    edge, square = h * (upper + lower), h * h
    D, X = [mass], [lower - upper - delta * mass]
    for n in range(1, q + 1):
        tail = edge if n == 1 else 2 * (n - 1) * square * D[n - 2]
        D.append((square - (2 * n - 1)) * D[n - 1] + delta * X[n - 1] + tail)
        if n < q:
            X.append(-delta * D[n] - 2 * n * X[n - 1])
    curve = 2 * (edge - mass) if q == 1 else -2 * q * ((2 * q - 1) * D[q - 1] - 2 * (q - 1) * square * D[q - 2])
    inverse = 1 / h
    scale = _odd_power(inverse, p)
    d_p, y_p = D[p] * scale, (X[p - 1] * (-2 * p) if p else lower - upper) * scale
    if q == p:
        return d_p, y_p, d_p, y_p, curve * scale
    scale = _odd_power(inverse, q)
    return d_p, y_p, D[q] * scale, X[q - 1] * (-2 * q) * scale, curve * scale


def _odd_power(x: Tensor, n: int) -> Tensor:
    """x^(2n+1) by products: `pow` takes as long as ten of them."""
    square, result = x * x, x
    for _ in range(n):
        result = result * square
    return result


def series(delta: Tensor, h: Tensor, p: int, q: int) -> ChordIntegrals:
    """The same by Taylor's series around the middle of the chord, for h up to SHORT: equation (5.16)."""
    # Beyond 13 standard deviations the density is negligible, and Hermite polynomials of high degree are not.
    delta = delta.clamp(-13, 13)
    square = h * h
    hermite = [normal(delta), delta * normal(delta)]
    for m in range(1, 2 * _TERMS + 1):
        hermite.append(delta * hermite[m] - m * hermite[m - 1])

    def total(n: int, shift: int) -> Tensor:
        result = torch.zeros_like(square)
        for k, factor in reversed(list(enumerate(coefficients(n)))):
            result = result * square + hermite[2 * k + shift] * factor
        return result

    return total(p, 0), total(p, 1), total(q, 0), total(q, 1), total(q, 2)


def coefficients(n: int) -> list[float]:
    """Those of the series (5.16) for the power n: B(k + 1/2, n + 1) / (2 k)!."""
    betas = [math.exp(math.lgamma(k + 0.5) + math.lgamma(n + 1) - math.lgamma(k + n + 1.5)) for k in range(_TERMS)]
    return [beta / math.factorial(2 * k) for k, beta in enumerate(betas)]


def has_closed_form(p: float) -> bool:
    """Whether `closed_form` and `series` are for this power of a density: 0, 1, 2 and 3."""
    return p in (0, 1, 2, 3)


def by_nodes(delta: Tensor, h: Tensor, p: float, nodes: int, reach: float) -> ChordIntegrals:
    """The same for any power p > -1 and q = p + 1, by Gauss-Legendre in the angle a of x = h sin(a): equation (5.30).

    `delta`, `h`: broadcast to (...); h of any size.
    `p`: the power, as large as one likes.
    `nodes`: of the rule.
    `reach`: standard deviations of the Gaussian, and of a density with a large power, that the nodes cover.
    """
    q = p + 1
    delta, h = torch.broadcast_tensors(delta, h)
    first, last = angles_in_reach(delta, h, reach, edge_of(p + 0.5, reach))
    half = (last - first) * 0.5
    x, w = gauss_legendre(nodes if p >= 0.5 else 2 * nodes, delta)
    if p < 0.5:
        # The cosine has a small power: a cubic that is flat at both ends doubles it.
        x, w = x * (3 - x * x) / 2, w * (1 - x * x) * 1.5
    v = (((last + first) * 0.5).unsqueeze(-1) + half.unsqueeze(-1) * x).sin_()
    y = delta.unsqueeze(-1) + h.unsqueeze(-1) * v
    logs = log_of_squared_cosine(v)
    kernel = torch.exp((p + 0.5) * logs - 0.5 * y.square()) / _ROOT_2PI
    kernel_y, kernel_q = kernel * y, kernel * (1 - v * v)
    # Integrating by parts avoids a difference of large terms on a long chord, as across the chords: see `quadrature`.
    by_parts = ((kernel_y * v) @ w) * (-2 * q / h)
    curve = torch.where(h > long_enough(p), by_parts, (kernel_q * (y.square() - 1)) @ w)
    sums = (kernel @ w, kernel_y @ w, kernel_q @ w, (kernel_q * y) @ w, curve)
    d_p, y_p, d_q, y_q, z_q = (half * total for total in sums)
    return d_p, y_p, d_q, y_q, z_q


def long_enough(p: float) -> float:
    """The half axis, in standard deviations of the Gaussian, from which second derivatives are taken by parts."""
    return 2 * math.sqrt((p + 2) / 3)
