"""The maps as values, one for each function; `Sinkhorn` is beside its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

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
    """See `regard.softmax` (docs/math.md, 2.2)."""

    function = softmax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sparsemax(MapValue):
    """See `regard.sparsemax` (docs/math.md, 2.3)."""

    function = sparsemax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Entmax(MapValue):
    """See `regard.entmax` (docs/math.md, 2.4). `alpha` is a number or a tensor, one number per row (default 1.5).

    >>> Entmax(2.0).simplest(), Entmax(1.5) == Entmax()
    (Sparsemax(), True)
    """

    alpha: float | Tensor = 1.5
    function = entmax

    def simplest(self) -> MapValue:
        """Softmax and sparsemax where alpha is 1 or 2."""
        if isinstance(self.alpha, Tensor):
            return self
        return Softmax() if self.alpha == 1 else Sparsemax() if self.alpha == 2 else self


@final
@dataclass(frozen=True, eq=False, repr=False)
class Normmax(MapValue):
    """See `regard.normmax` (docs/math.md, 2.14). `alpha` is a number or a tensor, one number per row (default 2)."""

    alpha: float | Tensor = 2.0
    function = normmax


@final
@dataclass(frozen=True, eq=False, repr=False)
class BudgetSparsemax(MapValue):
    """See `regard.budget_sparsemax` (docs/math.md, 2.18). `budget` is what the weights sum to (default 2)."""

    budget: float | Tensor = 2.0
    function = budget_sparsemax


@final
@dataclass(frozen=True, eq=False, repr=False)
class TV(MapValue):
    """See `regard.tvmax` (docs/math.md, 2.5.1): `gamma` is the price of a difference, `shape` is (height, width).

    >>> TV(0.1, shape=(14, 14))
    TV(gamma=0.1, shape=(14, 14))
    """

    gamma: float | Tensor
    shape: tuple[int, int]
    function = tvmax

    def __call__(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights with the shape of `s`, whose last axis is the flat grid."""
        if _check.axis("s", s, dim) != -1:
            _check.complain("dim", dim, "-1", "A grid lies on the last axis; move it there.")
        return tvmax(s, self.gamma, mask, self.shape)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Mean(MapValue):
    """See `regard.mean` (docs/math.md, 2.6)."""

    function = mean


@final
@dataclass(frozen=True, eq=False, repr=False)
class Gate(MapValue):
    """See `regard.gate` (docs/math.md, 6.21): `bias` (default 0) is added to the scores, `tau` (default 1) divides."""

    bias: float | Tensor = 0.0
    tau: float | Tensor = 1.0
    function = gate


@final
@dataclass(frozen=True, eq=False, repr=False)
class Inverse(MapValue):
    """See `regard.inverse` (docs/math.md, 6.22)."""

    function = inverse
