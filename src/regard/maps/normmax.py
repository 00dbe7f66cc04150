"""Normmax, the map that is regularised by a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from regard import _check
from regard.maps._rows import from_the_top, one_per_row, scores_in_float32
from regard.maps._value import MapValue

MOST_NEWTON_STEPS = 24  # of Newton's method, which needs at most 14 in practice; graphs and devices take them all
SMALLEST_STEP = 4e-16  # a smaller step does not change the weights


def normmax(s: Tensor, alpha: float | Tensor = 2.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Distribution that maximises <s, p> minus its `alpha`-norm: sparse, and flat on its support (docs/math.md, 2.14).

    `s`, `dim`, `mask`: as in `softmax`; so are shapes, -inf and errors.
    `alpha`: a number > 1, or a tensor that broadcasts against `s` with size 1 along `dim`, one per slice; default 2.
    The larger it is, the more equal are the weights that are not zero; near one it becomes a hard maximum.

    The threshold is computed in float64. Differentiable in `s` and `alpha`, twice, by the implicit function (2.16).

    >>> s = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    >>> normmax(s)
    tensor([0.0000, 0.0239, 0.1746, 0.3254, 0.4761])
    >>> normmax(s, alpha=20.0)
    tensor([0.0000, 0.0000, 0.3156, 0.3373, 0.3470])
    """
    if not isinstance(alpha, Tensor):
        alpha = _check.number("alpha", alpha, above=1, remedy="At 1 all weight goes to the largest score.")
    s, dim, dtype = scores_in_float32(s, dim, mask)
    if isinstance(alpha, Tensor):
        alpha = one_per_row("alpha", alpha, s, dim).movedim(dim, -1).double()
        if _check.values_checked(alpha) and not bool(((alpha > 1) & (alpha < math.inf)).all()):
            got = f"a tensor with values from {float(alpha.min())} to {float(alpha.max())}"
            _check.complain("alpha", got, "finite values > 1", "Learn it as alpha = 1 + softplus(a).")
    _check.scores(s)
    x, part, exists = from_the_top(s, dim)
    beta = alpha / (alpha - 1)
    tau = _threshold(x.detach(), part, beta.detach() if isinstance(beta, Tensor) else beta)
    for _ in range(2):
        # A Newton step from the root has its first derivative, and a second step has its second one too.
        tau = tau + _step(x, tau, part, beta)
    live, y = _above(x, tau, part)
    u = torch.where(live, y ** (beta - 1), 0.0)
    p = u / _not_zero(u.sum(-1, keepdim=True)) * exists
    return p.movedim(-1, dim).to(dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Normmax(MapValue):
    """See `regard.normmax` (docs/math.md, 2.14). `alpha` is a number (default 2), or a tensor that broadcasts to the
    scores (..., Lq, Lk) with size 1 on the last axis.

    >>> Normmax(3)
    Normmax(alpha=3)
    """

    alpha: float | Tensor = 2.0
    function = normmax


def _threshold(x: Tensor, part: Tensor, beta: float | Tensor) -> Tensor:
    """Newton's method from a lower bound, on a convex, decreasing norm (2.15): it rises and never passes the root."""
    tau = -torch.ones_like(x[..., :1])
    for _ in range(MOST_NEWTON_STEPS):
        step = _step(x, tau, part, beta).clamp(min=0)
        tau = tau + step
        if _check.readable_at_once(x) and not bool((step > SMALLEST_STEP).any()):
            break
    return tau


def _step(x: Tensor, tau: Tensor, part: Tensor, beta: float | Tensor) -> Tensor:
    live, y = _above(x, tau, part)
    u = torch.where(live, y ** (beta - 1), 0.0)
    power = _not_zero((u * y).sum(-1, keepdim=True))
    norm = power ** (1 / beta)
    return (norm - 1) * power / norm / _not_zero(u.sum(-1, keepdim=True))


def _above(x: Tensor, tau: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    """The entries above the threshold, and by how much; one elsewhere."""
    live = part & (x.detach() > tau.detach())
    return live, torch.where(live, x - tau, 1.0)


def _not_zero(total: Tensor) -> Tensor:
    """The sum of a row, one instead of zero for a row that is masked entirely."""
    return torch.where(total > 0, total, 1.0)
