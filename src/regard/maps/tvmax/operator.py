"""The regions of TVmax as an operator of torch, `regard::tv_regions`, by the native kernel or the plain solver."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import native
from regard.maps.tvmax.kernel import regions_by_kernel
from regard.maps.tvmax.solver import solve


@torch.library.custom_op("regard::tv_regions", mutates_args=())
def tv_regions(s: Tensor, gamma: Tensor, mask: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Regions of equal value in argmin_q 1/2 |q - s|^2 + gamma TV(q), equation (2.5.3), and the pull on them.

    `s`, `mask`: scores and mask (..., n) of flat grids.
    `gamma`: (..., 1).
    `width`: of the grids.

    Returns, for each cell, the number of its region's first cell
    (..., n) and the pull (2.5.7) on its region (..., n): the value of q there is mean(s) + gamma * pull. The result
    is constant around `s`, so there is nothing to differentiate. A grid with a score that is not finite, or a gamma
    that is negative or not finite, gets the pull NaN.
    """
    n = s.shape[-1]
    rows, shape = s.numel() // n, s.shape
    s, mask, gamma = s.reshape(rows, n).contiguous(), mask.reshape(rows, n).contiguous(), gamma.reshape(rows, 1)
    if native.usable(s, gamma):
        found = regions_by_kernel(s, gamma.contiguous(), mask, width)
        return found.labels.long().view(shape), found.pull.view(shape)
    labels = torch.empty(shape, dtype=torch.long, device=s.device)
    pull = torch.empty(shape, dtype=s.dtype, device=s.device)
    # On a CPU a chunk stays in the cache; elsewhere it only bounds the memory.
    chunk = max(1, (1 << 17 if s.device.type == "cpu" else 1 << 20) // n)
    for i in range(0, rows, chunk):
        part = slice(i, i + chunk)
        labels.view(rows, n)[part], pull.view(rows, n)[part] = solve(s[part], gamma[part], mask[part], width)
    return labels, pull


@tv_regions.register_fake
def _(s: Tensor, gamma: Tensor, mask: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return torch.empty(s.shape, dtype=torch.long, device=s.device), torch.empty(s.shape, dtype=s.dtype, device=s.device)


@tv_regions.register_vmap
def _(info, in_dims, s, gamma, mask, width):  # type: ignore[no-untyped-def]
    def leading(x: Tensor, dim: int | None) -> Tensor:
        return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

    batched = [leading(x, dim) for x, dim in zip((s, gamma, mask), in_dims, strict=False)]
    return tv_regions(*batched, width), (0, 0)
