"""Ratios of gamma functions for powers of every size: a difference of logarithms loses the digits of large ones.

Legend: d dimensions, p the power of a truncated density.
"""

from __future__ import annotations

import math

import torch

# From this argument on Stirling's series of Gamma(x + 1/2) / Gamma(x) is exact in float64; below, lgamma is.
_LARGE = 100.0


def log_gamma_ratio(x: float, dimensions: int) -> float:
    """log Gamma(x + d/2) - log Gamma(x), x > 0."""
    odd = dimensions % 2
    total = sum(math.log(x + odd / 2 + i) for i in range(dimensions // 2))
    if odd and x < _LARGE:
        total += math.lgamma(x + 0.5) - math.lgamma(x)
    elif odd:
        y = 1 / x
        total += 0.5 * math.log(x) - y / 8 + y**3 / 192 - y**5 / 640
    return total


def digamma_difference(x: float, dimensions: int) -> float:
    """The derivative of `log_gamma_ratio` in x: digamma(x + d/2) - digamma(x)."""
    odd = dimensions % 2
    total = sum(1 / (x + odd / 2 + i) for i in range(dimensions // 2))
    if odd and x < _LARGE:
        first, second = torch.digamma(torch.tensor([x + 0.5, x], dtype=torch.float64)).tolist()
        total += first - second
    elif odd:
        y = 1 / x
        total += y / 2 + y**2 / 8 - y**4 / 64 + y**6 / 128
    return total


def log_ball_constant(dimensions: int, power: float) -> float:
    """The logarithm of the constant that makes (1 - |u|^2)^power a density on the unit ball of R^d: equation (5.5)."""
    return log_gamma_ratio(power + 1, dimensions) - dimensions / 2 * math.log(math.pi)


def ball_constant(dimensions: int, power: float) -> float:
    """The exponential of `log_ball_constant`."""
    return math.exp(log_ball_constant(dimensions, power))
