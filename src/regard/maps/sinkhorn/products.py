"""Products of a matrix with vectors on its rows and columns, of which Sinkhorn's iterations consist."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from regard import native
from regard.maps.sinkhorn.kernel import scaled_rows_by_kernel

SPLIT = 16  # parts of a large matrix, multiplied in parallel


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and zero with a finite gradient where x and y are both zero."""
    return x / torch.where(y == 0, 1, y)


def reduced(x: Tensor, group: dist.ProcessGroup | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """`x` reduced by `op` (default a sum) over the processes of `group`."""
    if group is not None:
        x = x.contiguous()
        dist.all_reduce(x, op, group=group)
    return x


def times_rows(u: Tensor, matrix: Tensor) -> Tensor:
    """u M: (..., B) and (..., B, K) to (..., K)."""
    if _tiny(matrix):
        return (u.unsqueeze(-1) * matrix).sum(-2)
    parts, rows = _parts(matrix)
    if parts is None:
        return (u.unsqueeze(-2) @ matrix).squeeze(-2)
    head = torch.bmm(u[:rows].view(SPLIT, 1, -1), parts).sum((0, 1))
    return head if rows == len(u) else head + u[rows:] @ matrix[rows:]


def times_columns(matrix: Tensor, v: Tensor) -> Tensor:
    """M v: (..., B, K) and (..., K) to (..., B). Computed as v M^T, which is much faster."""
    if _tiny(matrix):
        return (matrix * v.unsqueeze(-2)).sum(-1)
    parts, rows = _parts(matrix)
    if parts is None:
        return (v.unsqueeze(-2) @ matrix.mT).squeeze(-2)
    head = torch.bmm(v.expand(SPLIT, 1, -1), parts.mT).flatten()
    return head if rows == matrix.shape[0] else torch.cat([head, matrix[rows:] @ v])


def _tiny(matrix: Tensor) -> bool:
    """Whether these are many small matrices, for which the overhead of a product exceeds its arithmetic."""
    return matrix.dim() > 2 and matrix.shape[-2] * matrix.shape[-1] <= 256


def _parts(matrix: Tensor) -> tuple[Tensor | None, int]:
    """A single large matrix as a batch of SPLIT, and how many rows that covers.

    On a CPU a product with one vector runs on one core, but a batch of them on all.
    """
    if matrix.dim() > 2 or matrix.device.type != "cpu" or matrix.numel() < 1 << 18 or matrix.shape[0] < SPLIT:
        return None, 0
    rows = matrix.shape[0] // SPLIT * SPLIT
    return matrix[:rows].view(SPLIT, -1, matrix.shape[1]), rows


def scaled_rows(
    matrix: Tensor, v: Tensor, a: Tensor, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """M v, the u = a / (M v) that gives rows their masses, and u M or None: (..., B) twice, (..., K).

    The native kernel reads a row once for both products; without it, or in a process group, u M is None.
    """
    if group is not None or not matrix.is_contiguous() or not native.usable(matrix, v, a):
        sums = times_columns(matrix, v)
        return sums, quotient(a, sums), None
    return scaled_rows_by_kernel(matrix, v, a)
