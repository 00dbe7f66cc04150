"""The native kernel of the regions of TVmax."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import native
from regard.maps.tvmax import solver

KERNEL_CHECK_EVERY = 10  # iterations; here a check of the residual costs no more than an iteration


def regions_by_kernel(s: Tensor, gamma: Tensor, mask: Tensor, width: int, labels: Tensor, pull: Tensor) -> None:
    """`solve` by the native kernel: one grid after another, each in the cache.

    `s`, `gamma`, `mask`, `width`: as in `tv_regions`.
    `labels`, `pull`: receive the results.
    """
    rows, n = s.shape
    error = torch.empty(rows, dtype=torch.float64)
    tensors = s, gamma, mask, labels, pull, error
    rules = solver.MOST_ITERATIONS, min(KERNEL_CHECK_EVERY, solver.CHECK_EVERY), solver.STEP, solver.TOLERANCE
    if native.call(f"regard_regions_{native.suffix(s)}", *tensors, rows, n, width, *rules):
        solver.warn(error[error > 0])
