"""TVmax as a value: gamma and the shape of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from regard import _check
from regard.maps._value import MapValue
from regard.maps.tvmax.function import tvmax, tvmax_with_sink


@final
@dataclass(frozen=True, eq=False, repr=False)
class TVmax(MapValue):
    """See `regard.tvmax` (docs/math.md, 2.5.1). `gamma` is the price of a difference between neighbours, a number or a
    tensor that broadcasts to the scores (..., Lq, Lk) with size 1 on the last axis; `shape` is (height, width).

    >>> TVmax(0.1, shape=(14, 14))
    TVmax(gamma=0.1, shape=(14, 14))
    """

    gamma: float | Tensor
    shape: tuple[int, int]
    function = tvmax
    name_defaults: ClassVar[Mapping[str, Any]] = {"gamma": 0.1}

    def __call__(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights with the shape of `s`, whose last axis is the flat grid."""
        if _check.axis("s", s, dim) != -1:
            _check.complain("dim", dim, "-1", "A grid lies on the last axis; move it there.")
        return tvmax(s, self.gamma, mask, self.shape)

    def with_sink(self) -> MapValue:
        """The map of the grid with one more score in front, which has no neighbours."""
        return SinkTVmax(self.gamma, self.shape)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SinkTVmax(MapValue):
    """`TVmax` for scores (..., 1 + height * width), the first of which belongs to a sink: see `tvmax_with_sink`."""

    gamma: float | Tensor
    shape: tuple[int, int]
    function = tvmax_with_sink

    def __call__(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights with the shape of `s`; `dim` is -1."""
        return tvmax_with_sink(s, self.gamma, mask, self.shape)
