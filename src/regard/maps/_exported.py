"""Sparsemax and entmax 1.5 in operations that every ONNX runtime has, for graphs that leave torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check


def entmax_sorted(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """`regard.entmax` by sorting, without a loop (docs/math.md, 2.4): scores hold -inf where they are masked."""
    if isinstance(alpha, Tensor) or alpha not in (1.5, 2.0):
        got = "a tensor" if isinstance(alpha, Tensor) else alpha
        remedy = "Other alphas need a loop that ends when it has converged: run the model in torch."
        _check.complain("alpha", got, "1, 1.5 or 2 in an ONNX export", remedy, NotImplementedError)
    s = s.movedim(dim, -1)
    top = s.amax(-1, keepdim=True)
    dead = top == -math.inf
    # The largest is at 0 and the threshold in [-1, 0): what lies below -1 has no weight, wherever it lies.
    y = ((alpha - 1) * (s - torch.where(dead, 0.0, top))).clamp(min=-2.0)
    tau = _threshold(y.sort(-1, descending=True).values, alpha)
    gap = (y - tau).relu()
    if alpha == 1.5:
        # One step of Newton's method gives back the digits that sums of squares lost.
        gap = (y - tau - (gap.square().sum(-1, keepdim=True) - 1) / (2 * gap.sum(-1, keepdim=True))).relu()
        gap = gap.square()
    return gap.masked_fill(dead, 0.0).movedim(-1, dim)


def _threshold(y: Tensor, alpha: float) -> Tensor:
    """The number that the largest entries exceed by 1 in total, or by 1 in squares; y is sorted."""
    k = torch.arange(1, y.shape[-1] + 1, device=y.device).to(y.dtype)
    mean = y.cumsum(-1) / k
    if alpha == 2:
        tau = mean - 1 / k
    else:
        spread = y.square().cumsum(-1) / k - mean.square()
        tau = mean - (1 / k - spread).clamp(min=0.0).sqrt()
    size = (y > tau).sum(-1, keepdim=True)
    return tau.gather(-1, size - 1)
