"""Measures of a distribution on the pixels of a picture against a region, from values that groups of pixels share.

Legend: B batch, M groups of pixels with one value each: the pixels themselves, or the cells of a grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HELD = 0.9 - 1e-12  # of the attention, in the measure `focus`
_MANY = 4096  # values of a row, from which on only those near the level that is looked for are sorted


def total(x: Tensor, pixels: Tensor | None) -> Tensor:
    """The sum over all pixels of what groups of them share, x (B, M): (B,); `pixels` (M,) of each, None for one."""
    return (x if pixels is None else x * pixels).sum(-1)


def divergence(p: Tensor, q: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """Jensen-Shannon divergence in bits, (B,), of p from a distribution that is q inside the region and 0 outside.

    `p`: (B, M), the probability of a pixel of each group.
    `q`: (B, 1) or (B, M), that of a pixel inside the region.
    `inside`: (B, M), the pixels of a group that are in the region.
    `outside`: (B,), the probability outside the region, where p log(p / (p / 2)) is p log 2.
    """
    both = p + q
    within = p_log_p(p) + p_log_p(q) - both * (both / 2).log_()
    return (((within * inside).sum(-1).double() / math.log(2) + outside) / 2).clamp(0, 1)


def p_log_p(p: Tensor) -> Tensor:
    """p log p, in nats; 0 for p = 0."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_() * p


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's correlation along the last axis; 0 if a row is constant."""
    a, b = (_ranks(x) - (x.shape[-1] - 1) / 2 for x in (a, b))
    scale = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return torch.where(scale > 0, (a * b).sum(-1) / scale.clamp_min(1e-300), 0.0)


def focus(values: Tensor, pixels: Tensor | None) -> Tensor:
    """The least number of pixels that hold nine tenths of the sum: (B,); values (B, M), pixels as in `total`."""
    return torch.tensor([_held(row, pixels) for row in values], dtype=torch.float64)


def _held(values: Tensor, pixels: Tensor | None) -> float:
    """The least number of pixels that hold nine tenths of the sum of one row (M,)."""
    above = 0.0
    needed = _HELD * float(total(values.double(), pixels))
    if pixels is None and len(values) > _MANY:
        # Positive floats are ordered as their bits are: 2048 levels, a few percent apart, find the one that matters.
        level = values.view(torch.int32) >> 20
        sums = level.bincount(values.double(), minlength=2048).flip(0).cumsum(0)
        found = min(int((sums < needed).sum()), 2047)
        if found:
            needed -= float(sums[found - 1])
            above = float((level > 2047 - found).sum())
        values = values[level == 2047 - found]
    ordered, order = values.sort(descending=True)
    counts = torch.ones(len(ordered)) if pixels is None else pixels[order]
    sums = (ordered.double() * counts).cumsum(0)
    last = min(int((sums < needed).sum()), len(sums) - 1)
    before = float(sums[last - 1]) if last else 0.0
    value, count = float(ordered[last]), float(counts[last])
    rest = min(max(math.ceil((needed - before) / value - 1e-9), 0), count) if value > 0 else 0
    return max(1.0, above + float(counts[:last].sum()) + rest)


def _ranks(x: Tensor) -> Tensor:
    """Ranks along the last axis, from 0; equal values share the mean of their ranks."""
    ordered = x.sort(-1).values.contiguous()
    x = x.contiguous()
    low, high = (torch.searchsorted(ordered, x, side=side) for side in ("left", "right"))
    return (low + high - 1).double() / 2
