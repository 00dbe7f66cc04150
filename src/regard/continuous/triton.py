"""Chords by a Triton kernel, as an operator of torch."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._fixed_numbers import fixed_numbers
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


def series_of(q: int, like: Tensor) -> Tensor:
    """The coefficients of the series of short chords for n = 1 and n = q, (2, terms), on the device of a tensor."""
    return fixed_numbers((tuple(chord.coefficients(1)), tuple(chord.coefficients(q))), like)
