"""Mean, the map of non-local blocks: scores divided by their number, which is no distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from regard import _check
from regard.maps._rows import scores_in_float32
from regard.maps._value import MapValue


def mean(s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Scores divided by the number of entries that take part (docs/math.md, 2.6), as in non-local blocks.

    Not a distribution: nothing forces the result to be positive or to sum to one. Shapes, masks and errors as in
    `softmax`.

    >>> import torch
    >>> mean(torch.tensor([3.0, -1.0, 5.0]), mask=torch.tensor([True, True, False]))
    tensor([ 1.5000, -0.5000,  0.0000])
    """
    s, dim, dtype = scores_in_float32(s, dim, mask)
    _check.scores(s)
    part = s != -math.inf
    total = part.sum(dim, keepdim=True).clamp(min=1)
    return (s.masked_fill(~part, 0.0) / total).to(dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Mean(MapValue):
    """See `regard.mean` (docs/math.md, 2.6).

    >>> import torch
    >>> Mean()(torch.tensor([3.0, -1.0]))
    tensor([ 1.5000, -0.5000])
    """

    function = mean
    competes: ClassVar[bool] = False
