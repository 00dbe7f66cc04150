"""Integrals of a Gaussian times (h^2 - x^2)^n along a chord: closed form, and a series for short chords.

With phi the standard normal density and delta the middle of the chord, all in standard deviations of the Gaussian:

    D_n = int_-h^h (h^2 - x^2)^n phi(delta + x) dx,   Y_n = -dD_n / d delta,   Z_n = d^2 D_n / d delta^2.
    (5.14)

Here they are divided by h^(2n+1), which keeps them finite for every h.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
    """D_p, Y_p, D_q, Y_q, Z_q over h^(2n+1) for 1 <= p <= q, by recurrence from erf: equation (5.15).

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
    d_p, y_p = D[p] * scale, X[p - 1] * (-2 * p) * scale
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
        for k in range(_TERMS - 1, -1, -1):
            beta = math.exp(math.lgamma(k + 0.5) + math.lgamma(n + 1) - math.lgamma(k + n + 1.5))
            result = result * square + hermite[2 * k + shift] * (beta / math.factorial(2 * k))
        return result

    return total(p, 0), total(p, 1), total(q, 0), total(q, 1), total(q, 2)
