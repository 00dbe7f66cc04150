"""The launch of the Triton kernel of chords."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.gpu._choose import device_of
from regard.gpu._tune import tuned

ELLIPSES, WARPS = 128, 4  # ellipses of a program: one for each thread


def chord_sums(
    ellipses: list[Tensor], nodes: Tensor, weights: Tensor, series: Tensor, q: int, reach: float, ratio: float
) -> Tensor:
    """Six sums of each ellipse, (..., 6), in float32.

    `ellipses`: centres along the long and the short axis, and the two half axes: contiguous, of one shape.
    `nodes`, `weights`: of the chords, (n).
    `series`: coefficients of the series of short chords, (2, terms).
    `q`: the power of the second density, 1 or 2.
    `reach`: standard deviations of the Gaussian that the chords cover.
    `ratio`: the constant of the second density over that of the first.
    """
    from regard.gpu import _chord_kernels

    count = ellipses[0].numel()
    out = torch.empty(*ellipses[0].shape, 6, dtype=torch.float32, device=nodes.device)
    if count == 0:
        return out
    with device_of(nodes):
        tuned(_chord_kernels.chords_of_ellipses)[(-(-count // ELLIPSES),)](
            *ellipses,
            nodes,
            weights,
            series,
            out,
            count,
            nodes.numel(),
            series.shape[-1],
            reach,
            ratio,
            Q=q,
            BLOCK=ELLIPSES,
            num_warps=WARPS,
        )
    return out
