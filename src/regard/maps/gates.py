"""Maps of minus a distance: gate, a sigmoid per entry, and inverse, weights in proportion to 1 / (1 + distance)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from regard import _check
from regard.maps._value import MapValue


def gate(
    s: Tensor, dim: int = -1, mask: Tensor | None = None, *, bias: float | Tensor = 0.0, tau: float | Tensor = 1.0
) -> Tensor:
    """Weight of each entry on its own, sigmoid((bias + s) / tau); slices sum to anything (docs/math.md, 6.21).

    `s`: scores of any shape.
    `dim`: the axis that other maps normalise; only checked to exist; default -1.
    `mask`: as in `softmax`.
    `bias`: a number, or a tensor that broadcasts to `s` and can be learned; default 0.
    `tau`: the same, > 0; default 1.

    For s = -W, minus a distance, it is sigmoid((bias - W) / tau): one half where the distance is `bias`. Differentiable
    in s, bias and tau. Masked entries and scores of -inf have weight zero, and gradient zero. NaN and +inf raise
    ValueError.

    >>> gate(torch.tensor([0.0, -2.0, -4.0]), bias=2.0)
    tensor([0.8808, 0.5000, 0.1192])
    """
    s, dtype, dead = _prepare(s, dim, mask)
    if not isinstance(tau, Tensor):
        _check.number("tau", tau, above=0, remedy="The smaller, the harder the gate.")
    return torch.sigmoid((s + bias) / tau).masked_fill(dead, 0.0).to(dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Gate(MapValue):
    """See `regard.gate` (docs/math.md, 6.21). `bias` (default 0) is added to the scores and `tau` (default 1) divides
    them: numbers, or tensors that broadcast to (..., Lq, Lk).

    >>> Gate(bias=2.0)(torch.tensor([-2.0]))
    tensor([0.5000])
    """

    bias: float | Tensor = 0.0
    tau: float | Tensor = 1.0
    function = gate
    competes: ClassVar[bool] = False


def inverse(s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Distribution with weights in proportion to 1 / (1 - s), for s <= 0 (docs/math.md, 6.22).

    For s = -W / tau, minus a distance, weights fall off as 1 / (1 + W / tau): long tails where softmax has none. `s`
    has any shape; each slice along `dim` sums to one. Differentiable. Masked entries and scores of -inf have weight
    zero, a slice that is masked whole is zero, and so is its gradient. Scores above zero, and NaN, raise ValueError.

    >>> inverse(torch.tensor([0.0, -1.0, -3.0]))
    tensor([0.5714, 0.2857, 0.1429])
    """
    s, dtype, dead = _prepare(s, dim, mask)
    if _check.values_checked(s) and bool((s > 0).any()):
        _check.complain("s", "a score above 0", "minus a distance", "Use an affinity of the Wasserstein family.")
    weights = (1 / (1 - s)).masked_fill(dead, 0.0)
    total = weights.sum(dim, keepdim=True)
    return (weights / torch.where(total > 0, total, 1)).to(dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Inverse(MapValue):
    """See `regard.inverse` (docs/math.md, 6.22).

    >>> Inverse()(torch.tensor([0.0, -1.0, -3.0]))
    tensor([0.5714, 0.2857, 0.1429])
    """

    function = inverse


def _prepare(s: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, torch.dtype, Tensor]:
    """Scores in at least float32, zero where masked or -inf; the dtype of the result; and where they are masked."""
    _check.floating("s", s)
    dim = _check.axis("s", s, dim)
    dtype = s.dtype
    dead = s == -math.inf
    if mask is not None:
        _check.boolean_mask(mask, s.shape)
        dead = dead | ~mask
    s = s.to(torch.promote_types(dtype, torch.float32)).masked_fill(dead, 0.0)
    _check.scores(s)
    return s, dtype, dead
