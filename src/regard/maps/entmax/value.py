"""The values: softmax, sparsemax and entmax with their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from regard.maps._value import MapValue
from regard.maps.entmax.function import entmax, softmax, sparsemax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Softmax(MapValue):
    """See `regard.softmax` (docs/math.md, 2.2).

    >>> import torch
    >>> Softmax()(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    function = softmax


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sparsemax(MapValue):
    """See `regard.sparsemax` (docs/math.md, 2.3).

    >>> import torch
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

    alpha: float | Tensor = 1.5
    function = entmax

    def simplest(self) -> MapValue:
        """Softmax and sparsemax where alpha is 1 or 2."""
        if isinstance(self.alpha, Tensor):
            return self
        return Softmax() if self.alpha == 1 else Sparsemax() if self.alpha == 2 else self


def entmax_order(map: Any) -> float | None:
    """The alpha of softmax, sparsemax or entmax with a number, given as a value; None for any other map."""
    if isinstance(map, Softmax):
        return 1.0
    if isinstance(map, Sparsemax):
        return 2.0
    return float(map.alpha) if isinstance(map, Entmax) and not isinstance(map.alpha, Tensor) else None
