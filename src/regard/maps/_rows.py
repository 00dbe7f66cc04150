"""Shared by maps that act per row: scores prepared for the computation, and parameters with one number per row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check


def scores_in_float32(s: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, int, torch.dtype]:
    """Scores in at least float32 with masked entries at -inf, the axis as a negative number, the result's dtype."""
    _check.floating("s", s, min_dims=1)
    dim = _check.axis("s", s, dim)
    dtype = s.dtype
    if dtype in (torch.float16, torch.bfloat16):
        s = s.float()
    if mask is not None:
        _check.boolean_mask(mask, s.shape)
        s = s.masked_fill(~mask, -math.inf)
    return s, dim, dtype


def one_per_row(argument: str, x: Tensor, s: Tensor, dim: int, in_dtype: bool = True) -> Tensor:
    """A parameter with as many axes as `s`, of size 1 along `dim`, in the dtype of `s` unless `in_dtype` is False."""
    _check.floating(argument, x)
    _check.broadcasts(argument, x, s.shape, of="s")
    x = x[(None,) * (s.dim() - x.dim())]
    if x.shape[dim] != 1:
        remedy = f"{argument.capitalize()} is one number per row; use unsqueeze or keepdim=True."
        _check.complain(argument, f"shape {tuple(x.shape)}", f"size 1 along dim {dim}", remedy)
    return x.to(s.dtype) if in_dtype else x


def from_the_top(s: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores minus their maximum, in float64 with `dim` last, zero where masked; the mask, True where not masked; and a
    factor for the weights per row: one, or NaN where the maximum is NaN or +inf."""
    x = s.movedim(dim, -1).double()
    top = x.detach().amax(-1, keepdim=True)
    part = x.detach() > -math.inf
    x = torch.where(part, x - torch.where(top > -math.inf, top, 0.0), 0.0)
    return x, part, torch.where(top < math.inf, 1.0, math.nan)
