"""Numbers for JSON: plain lists, rounded to six decimals."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

_DIGITS = 6


def rounded(x: Tensor | float) -> Any:
    """A number, or a tensor as nested lists, to six decimals; NaN and infinities, which JSON lacks, are 0.

    >>> import torch
    >>> rounded(1 / 3), rounded(torch.tensor([[0.5, float("inf")]], dtype=torch.float64))
    (0.333333, [[0.5, 0.0]])
    """
    return _rounded(x.tolist() if isinstance(x, Tensor) else x)


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return round(values, _DIGITS) if math.isfinite(values) else 0.0
