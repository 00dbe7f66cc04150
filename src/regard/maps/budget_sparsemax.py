"""Budget sparsemax, a map onto weights of at most one with a fixed sum: soft subsets of k entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from regard import _check
from regard.maps._rows import from_the_top, one_per_row, scores_in_float32
from regard.maps._value import MapValue


def budget_sparsemax(s: Tensor, budget: float | Tensor = 2.0, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Weights from zero to one, nearest to the scores, that sum to `budget`: soft k-subsets (docs/math.md, 2.18).

    `s`, `dim`, `mask`: as in `softmax`; so are shapes, -inf and errors.
    `budget`: a number >= 0, or a tensor that broadcasts against `s` with size 1 along `dim`, one per slice; default 2.

    At budget 1 this is sparsemax; at a whole number k, scores that are far enough apart choose the k largest. Where
    fewer entries than the budget take part, each has weight one. A slice sums to its budget, and is a distribution only
    if that is one.

    Exact, by a sort, in float64. Differentiable in `s` and `budget`, closed form (2.20), any number of times.

    >>> budget_sparsemax(torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0]), budget=3.0)
    tensor([0.0000, 0.2500, 0.7500, 1.0000, 1.0000])
    """
    if not isinstance(budget, Tensor):
        budget = _check.number("budget", budget, at_least=0, remedy="It is the sum of the weights.")
    s, dim, dtype = scores_in_float32(s, dim, mask)
    if isinstance(budget, Tensor):
        budget = one_per_row("budget", budget, s, dim).movedim(dim, -1).double()
        _check.nonnegative("budget", budget, "It is the sum of the weights.")
    _check.scores(s)
    x, part, exists = from_the_top(s, dim)
    budget = budget.to(x) if isinstance(budget, Tensor) else x.new_full((), budget)
    start, end = _segment(x.detach(), part, budget.detach())
    full = part & (x.detach() - 1 >= end)
    free = part & ~full & (x.detach() >= end)
    # Between two breakpoints the threshold is linear in the free scores; they lie within one of the first.
    y = torch.where(free, x - start, 0.0)
    left = budget - full.sum(-1, keepdim=True)
    tau = (y.sum(-1, keepdim=True) - left) / free.sum(-1, keepdim=True).clamp(min=1)
    p = torch.where(free, (y - tau).clamp(0, 1), full.to(x.dtype)) * exists
    return p.movedim(-1, dim).to(dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class BudgetSparsemax(MapValue):
    """See `regard.budget_sparsemax` (docs/math.md, 2.18). `budget` is what the weights sum to, a number (default 2), or
    a tensor that broadcasts to the scores (..., Lq, Lk) with size 1 on the last axis.

    >>> BudgetSparsemax(2)(torch.tensor([3.0, 2.0, 0.0]))
    tensor([1., 1., 0.])
    """

    budget: float | Tensor = 2.0
    function = budget_sparsemax


def _segment(x: Tensor, part: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """The neighbouring breakpoints between which the weights sum to the budget (2.19)."""
    # With a rising threshold, an entry is free from x - 1 on and zero from x on.
    at, order = torch.cat([x - 1, x], -1).sort(-1)
    change = torch.cat([part, part], -1).gather(-1, order) * torch.where(order < x.shape[-1], 1.0, -1.0)
    free = change.cumsum(-1)[..., :-1].to(x.dtype)
    falls = torch.cat([torch.zeros_like(x[..., :1]), (free * at.diff()).cumsum(-1)], -1)
    total = part.sum(-1, keepdim=True) - falls
    start = ((total > budget).sum(-1, keepdim=True) - 1).clamp(0, at.shape[-1] - 2)
    return at.gather(-1, start), at.gather(-1, start + 1)
