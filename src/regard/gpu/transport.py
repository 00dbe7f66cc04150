"""The launches of the Triton kernel of Sinkhorn's iterations: one for each, and one more that writes the plan."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.gpu._choose import device_of
from regard.gpu._tune import tuned

MOST_COLUMNS = 8192  # columns that one program holds
TILE = 4096  # entries of a tile: several rows where they are short
TILES_EACH = 8  # tiles of a program, whose sums of columns are one row of what is summed afterwards


class Sweep(NamedTuple):
    """Of rows (matrices, B): largest s + g and sum of exponentials; of columns (matrices, programs, K): sums are
    `sums` 2^`peaks`; and the plan, empty unless it was asked for."""

    base: Tensor
    total: Tensor
    peaks: Tensor
    sums: Tensor
    plan: Tensor


def tiles(rows: int, columns: int) -> tuple[int, int, int]:
    """How many programs there are for a matrix, how many rows are in a tile, and how many columns.

    >>> tiles(4096, 1024), tiles(100, 3000), tiles(1, 1)
    ((128, 4, 1024), (13, 1, 4096), (1, 256, 16))
    """
    block = max(16, 1 << (columns - 1).bit_length())
    together = max(1, TILE // block)
    return -(-rows // (together * TILES_EACH)), together, block


def sweep_columns(
    s: Tensor, g: Tensor, rest: Tensor, a: Tensor, top: Tensor, eps: float, first: bool, write: bool
) -> Sweep:
    """One sweep over float32 scores (matrices, B, K), contiguous, as in `_transport_kernels.sinkhorn_sweep`."""
    from regard.gpu import _transport_kernels

    matrices, rows, columns = s.shape
    programs, together, block = tiles(rows, columns)
    base, total = torch.zeros_like(a), torch.zeros_like(a)  # the first sweep writes none
    peaks = s.new_empty(matrices, programs, columns)
    sums = torch.empty_like(peaks)
    plan = s.new_empty(s.shape if write else (0,))
    with device_of(s):
        tuned(_transport_kernels.sinkhorn_sweep)[(programs, matrices)](
            s,
            g,
            rest,
            a,
            top,
            base,
            total,
            peaks,
            sums,
            plan,
            rows,
            columns,
            1 / eps,
            FIRST=first,
            WRITE=write,
            STEPS=TILES_EACH,
            ROWS=together,
            BLOCK=block,
            num_warps=8,
        )
    return Sweep(base, total, peaks, sums, plan)
