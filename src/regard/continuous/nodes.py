"""Nodes of Gauss-Legendre rules, and the part of a ball's axis that they have to cover."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from regard._fixed_numbers import fixed_numbers


def gauss_legendre(nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (Q,) of the rule on [-1, 1] that is exact for polynomials up to degree 2 Q - 1."""
    x, w = _legendre(nodes)
    return fixed_numbers(x, like), fixed_numbers(w, like)


@cache
def _legendre(nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Newton's method on the Legendre polynomial, from the usual cosine guesses."""
    points, weights = [], []
    for i in range(nodes):
        x, slope = math.cos(math.pi * (i + 0.75) / (nodes + 0.5)), 1.0
        for _ in range(8):
            previous, value = 1.0, x
            for k in range(2, nodes + 1):
                previous, value = value, ((2 * k - 1) * x * value - (k - 1) * previous) / k
            slope = nodes * (x * value - previous) / (x * x - 1)
            x -= value / slope
        points.append(x)
        weights.append(2 / ((1 - x * x) * slope * slope))
    return tuple(points), tuple(weights)


def edge_of(exponent: float, reach: float) -> float:
    """The s in (0, 1] up to which (1 - s^2)^exponent is worth integrating: it is exp(-reach^2 / 2) there.

    For a large exponent this is `reach` standard deviations, as the function is nearly a Gaussian. For an exponent
    below four it is the whole axis.
    """
    return 1.0 if exponent < 4 else math.sqrt(-math.expm1(-(reach**2) / (2 * exponent)))


def angles_in_reach(delta: Tensor, half: Tensor, reach: float, edge: float = 1.0) -> tuple[Tensor, Tensor]:
    """The angles a, |sin a| <= edge, between which |delta + half sin(a)| <= reach; two equal ones where there are none.

    `delta`, `half`: middle and half length of an axis, in standard deviations of a Gaussian at zero; they broadcast.
    """
    first = ((-reach - delta) / half).clamp(-edge, edge).asin_()
    last = ((reach - delta) / half).clamp(-edge, edge).asin_()
    return first, last


def log_of_squared_cosine(sine: Tensor) -> Tensor:
    """log(1 - s^2), finite at s = 1 too, with all digits of a small s."""
    return (-sine.square()).clamp_min_(torch.finfo(sine.dtype).eps - 1).log1p_()
