"""Chords by a Triton kernel, as an operator of torch."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from regard.continuous import chord
from regard.gpu.chords import chord_sums


@torch.library.custom_op("regard::chords_triton", mutates_args=())
def chords_triton(
    y1: Tensor,
    y2: Tensor,
    long: Tensor,
    short: Tensor,
    nodes: Tensor,
    weights: Tensor,
    series: Tensor,
    q: int,
    reach: float,
    ratio: float,
) -> Tensor:
    """Six sums of each ellipse, (..., 6); arguments as in `regard.gpu.chords`."""
    return chord_sums([y1, y2, long, short], nodes, weights, series, q, reach, ratio)


@chords_triton.register_fake
def _(y1: Tensor, *others: Tensor | float) -> Tensor:
    return y1.new_empty(*y1.shape, 6)


@functools.lru_cache(maxsize=8)
def series_of(q: int, device: torch.device) -> Tensor:
    """The coefficients of the series of short chords for n = 1 and n = q on a device, (2, terms)."""
    return torch.tensor([chord.coefficients(1), chord.coefficients(q)], dtype=torch.float32).to(device)
