"""Entmax for alpha above two, where weights rise with an infinite slope at the edge of the support.

A weight of 0.01 at alpha = 10 belongs to a score that lies 1e-18 inside the support: no threshold that is stored as a
number tells it from zero. So the *smallest positive weight* w is solved for instead (docs/math.md, 2.10.1). With scores
sorted and k the last entry of the support, D_i = (delta (s_i - s_k))^(1 / delta), the weights are the norms

    p_i = (D_i^delta + w^delta)^(1 / delta),

and their sum is convex and increasing in w with a slope of at least one: Newton's method from above needs no bracket,
and loses no digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.maps.entmax.steps import newton_steps


def steep_rows(x: Tensor, delta: Tensor) -> Tensor:
    """The weights of rows for alpha = 1 + delta above two.

    `x`: scores (rows, n), of which differences alone matter; -inf where an entry is masked.
    `delta`: (rows or 1, 1), in the same dtype, each at least one.

    A row of -inf gives zeros, a row with NaN gives NaN.
    """
    dead = x.isneginf()
    x = x.masked_fill(dead, torch.finfo(x.dtype).min)  # differences of -inf would be NaN
    last = _smallest_in_support(x, delta)
    roots = _root(x - last, delta)  # D
    inside = x >= last
    ties = (inside & (roots == 0)).sum(-1, keepdim=True)
    w = 1 / ties.clamp(min=1).to(x.dtype)
    # The sum begins below n + 1, and its slope is between 1 and n: as for a threshold with alpha = 2.
    for _ in range(newton_steps(x.shape[-1] + 1, 1.0, 4 * torch.finfo(x.dtype).eps) + 1):
        p = torch.where(inside, _norm(roots, w, delta), 0.0)
        slope = torch.where(inside, (w / p.clamp(min=torch.finfo(p.dtype).tiny)) ** (delta - 1), 0.0)
        lower = (w - (p.sum(-1, keepdim=True) - 1) / slope.sum(-1, keepdim=True).clamp(min=1)).clamp(min=0)
        if _check.readable_at_once(x) and not bool((lower < w).any()):
            break
        w = torch.minimum(w, lower)
    p = torch.where(inside | x.isnan(), _norm(roots, w, delta), 0.0).masked_fill(dead, 0.0)
    total = p.sum(-1, keepdim=True)
    return p / torch.where(total == 0, 1.0, total)


def _smallest_in_support(x: Tensor, delta: Tensor) -> Tensor:
    """The lowest score with a positive weight: the lowest at which the weights above it do not yet sum to one."""
    ordered = x.sort(-1, descending=True).values
    low = torch.zeros_like(x[:, :1], dtype=torch.long)  # in the support
    high = torch.full_like(low, x.shape[-1])  # not in it
    for _ in range((x.shape[-1] - 1).bit_length()):
        middle = (low + high) // 2
        sums = _root(x - ordered.gather(-1, middle), delta).sum(-1, keepdim=True)
        within = sums < 1
        low, high = torch.where(within, middle, low), torch.where(within, high, middle)
    return ordered.gather(-1, low)


def _root(difference: Tensor, delta: Tensor) -> Tensor:
    """[delta d]_+^(1 / delta)."""
    positive = difference > 0
    scaled = torch.where(positive, difference, 1.0).log() + delta.log()
    root = torch.where(positive, torch.exp(scaled / delta), 0.0)
    return torch.where(difference.isnan(), math.nan, root)


def _norm(roots: Tensor, w: Tensor, delta: Tensor) -> Tensor:
    """(D^delta + w^delta)^(1 / delta) without overflow."""
    larger = torch.maximum(roots, w)
    ratio = torch.minimum(roots, w) / torch.where(larger > 0, larger, 1.0)
    return larger * torch.exp(torch.log1p(ratio**delta) / delta)
