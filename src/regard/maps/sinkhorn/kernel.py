"""The native kernel that scales the rows of a matrix and sums its columns in one pass."""

from __future__ import annotations

from torch import Tensor

from regard import native


def scaled_rows_by_kernel(matrix: Tensor, v: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M v, u = a / (M v) and u M for a contiguous M (..., B, K): a row is read once for both products."""
    sums, u, columns = a.new_empty(a.shape), a.new_empty(a.shape), v.new_empty(v.shape)
    sizes = matrix.shape[:-2].numel(), *matrix.shape[-2:]
    name = f"regard_scale_{native.suffix(matrix)}"
    native.call(name, matrix, v.contiguous(), a.contiguous(), sums, u, columns, *sizes)
    return sums, u, columns
