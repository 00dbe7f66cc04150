"""The native kernels of TVmax: the regions with their smoothed scores, and the mean over each region."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard import native
from regard.maps.tvmax import solver

KERNEL_CHECK_EVERY = 10  # iterations; here a check of the residual costs no more than an iteration


class GridRegions(NamedTuple):
    """What the kernel finds in flat grids (rows, n).

    `labels`: of each cell, the number of its region's first cell, int32.
    `pull`: on the region of each cell (2.5.7).
    `smooth`: smoothed scores minus `middle`, and -inf where a cell does not take part.
    `middle`: of the range of the scores, (rows, 1).
    `finite`: whether all scores that take part are, and every gamma; else all of a grid's results are NaN.
    """

    labels: Tensor
    pull: Tensor
    smooth: Tensor
    middle: Tensor
    finite: bool


def regions_by_kernel(s: Tensor, gamma: Tensor, mask: Tensor | None, width: int) -> GridRegions:
    """The regions by the native kernel: grids in the lanes of registers, each certified in float64.

    `s`: scores (rows, n), where -inf does not take part.
    `gamma`: (rows, 1).
    `mask`: (rows, n) or None.
    `width`: of the grids.

    Grids that are not certified give a warning.
    """
    rows, n = s.shape
    labels, pull, smooth = torch.empty_like(s, dtype=torch.int32), torch.empty_like(s), torch.empty_like(s)
    middle, error = s.new_empty(rows, 1), torch.empty(rows, dtype=torch.float64)
    part = torch.empty(0, dtype=torch.bool) if mask is None else mask
    rules = solver.MOST_ITERATIONS, min(KERNEL_CHECK_EVERY, solver.CHECK_EVERY), solver.STEP, solver.TOLERANCE
    tensors = s, gamma, part, labels, pull, smooth, middle, error
    finite = True
    if native.call(f"regard_regions_{native.suffix(s)}", *tensors, rows, n, width, int(mask is not None), *rules):
        finite = not bool(error.isnan().any())
        if bool((error > 0).any()):
            solver.warn(error[error > 0])
    return GridRegions(labels, pull, smooth, middle, finite)


def region_means_by_kernel(x: Tensor, labels: Tensor) -> Tensor:
    """The mean of x (rows, n) over the cells that share a label, by the native kernel."""
    out = torch.empty_like(x)
    native.call(f"regard_region_means_{native.suffix(x)}", x, labels, out, *x.shape)
    return out
