"""The maps as values, one for each function; `Sinkhorn` is beside its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from regard import _check
from regard.maps._value import MapValue
from regard.maps.budget import budget_sparsemax
from regard.maps.gates import gate, inverse
from regard.maps.normed import normmax
from regard.maps.simplex import entmax, mean, softmax, sparsemax
from regard.maps.structured import tvmax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Softmax(MapValue):
    """See `regard.softmax` (docs/math.md, 2.2).

    >>> Softmax()(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    function = softmax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sparsemax(MapValue):
    """See `regard.sparsemax` (docs/math.md, 2.3).

    >>> Sparsemax()(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    function = sparsemax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Entmax(MapValue):
    """See `regard.entmax` (docs/math.md, 2.4). `alpha` is a number (default 1.5), or a tensor that broadcasts to the
    scores (..., Lq, Lk) with size 1 on the last axis.

    >>> Entmax(2.0).simplest(), Entmax(1.5) == Entmax()
    (Sparsemax(), True)
    """

    alpha: float | torch.Tensor = 1.5
    function = entmax

    def simplest(self) -> MapValue:
        """Softmax and sparsemax where alpha is 1 or 2."""
        if isinstance(self.alpha, torch.Tensor):
            return self
        return Softmax() if self.alpha == 1 else Sparsemax() if self.alpha == 2 else self


@final
@dataclass(frozen=True, eq=False, repr=False)
class Normmax(MapValue):
    """See `regard.normmax` (docs/math.md, 2.14). `alpha` is a number (default 2), or a tensor that broadcasts to the
    scores (..., Lq, Lk) with size 1 on the last axis.

    >>> Normmax(3)
    Normmax(alpha=3)
    """

    alpha: float | torch.Tensor = 2.0
    function = normmax


@final
@dataclass(frozen=True, eq=False, repr=False)
class BudgetSparsemax(MapValue):
    """See `regard.budget_sparsemax` (docs/math.md, 2.18). `budget` is what the weights sum to, a number (default 2), or
    a tensor that broadcasts to the scores (..., Lq, Lk) with size 1 on the last axis.

    >>> BudgetSparsemax(2)(torch.tensor([3.0, 2.0, 0.0]))
    tensor([1., 1., 0.])
    """

    budget: float | torch.Tensor = 2.0
    function = budget_sparsemax


@final
@dataclass(frozen=True, eq=False, repr=False)
class TVmax(MapValue):
    """See `regard.tvmax` (docs/math.md, 2.5.1). `gamma` is the price of a difference between neighbours, a number or a
    tensor that broadcasts to the scores (..., Lq, Lk) with size 1 on the last axis; `shape` is (height, width).

    >>> TVmax(0.1, shape=(14, 14))
    TVmax(gamma=0.1, shape=(14, 14))
    """

    gamma: float | torch.Tensor
    shape: tuple[int, int]
    function = tvmax

    def __call__(self, s: torch.Tensor, dim: int = -1, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Weights with the shape of `s`, whose last axis is the flat grid."""
        if _check.axis("s", s, dim) != -1:
            _check.complain("dim", dim, "-1", "A grid lies on the last axis; move it there.")
        return tvmax(s, self.gamma, mask, self.shape)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Mean(MapValue):
    """See `regard.mean` (docs/math.md, 2.6).

    >>> Mean()(torch.tensor([3.0, -1.0]))
    tensor([ 1.5000, -0.5000])
    """

    function = mean


@final
@dataclass(frozen=True, eq=False, repr=False)
class Gate(MapValue):
    """See `regard.gate` (docs/math.md, 6.21). `bias` (default 0) is added to the scores and `tau` (default 1) divides
    them: numbers, or tensors that broadcast to (..., Lq, Lk).

    >>> Gate(bias=2.0)(torch.tensor([-2.0]))
    tensor([0.5000])
    """

    bias: float | torch.Tensor = 0.0
    tau: float | torch.Tensor = 1.0
    function = gate


@final
@dataclass(frozen=True, eq=False, repr=False)
class Inverse(MapValue):
    """See `regard.inverse` (docs/math.md, 6.22).

    >>> Inverse()(torch.tensor([0.0, -1.0, -3.0]))
    tensor([0.5714, 0.2857, 0.1429])
    """

    function = inverse
