"""Sinkhorn's iterations by a Triton kernel, as an operator of torch: one launch for each, and nothing is read."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from regard import gpu
from regard.gpu.transport import MOST_COLUMNS, sweep_columns, tiles
from regard.maps.sinkhorn.log_domain import share_error, start
from regard.maps.sinkhorn.products import reduced


@torch.library.custom_op("regard::sinkhorn_triton", mutates_args=())
def sinkhorn_triton(
    s: Tensor, g: Tensor, rest: Tensor, a: Tensor, top: Tensor, eps: float, first: bool, write: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One sweep over the scores; arguments and results as in `regard.gpu.transport`."""
    return sweep_columns(s, g, rest, a, top, eps, first, write)


@sinkhorn_triton.register_fake
def _(
    s: Tensor, g: Tensor, rest: Tensor, a: Tensor, top: Tensor, eps: float, first: bool, write: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    programs, _, _ = tiles(*s.shape[-2:])
    peaks = s.new_empty(s.shape[0], programs, s.shape[-1])
    plan = s.new_empty(s.shape if write else (0,))
    return torch.empty_like(a), torch.empty_like(a), peaks, torch.empty_like(peaks), plan


def sweepable(s: Tensor) -> bool:
    """Whether the kernel takes these scores."""
    return s.dtype == torch.float32 and s.shape[-1] <= MOST_COLUMNS and gpu.usable(s)


def swept(
    s: Tensor, a: Tensor, b: Tensor, top: Tensor, eps: float, iterations: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    """The plan after at least one iteration, the potentials f and g of each in float64, and the residual.

    `s`: scores (..., B, K); `a`, `b`: masses; `top`: (...), the largest score.
    """
    shape, (rows, columns) = s.shape, s.shape[-2:]
    flat = s.reshape(-1, rows, columns).contiguous()
    a, b = a.reshape(-1, rows).contiguous(), b.reshape(-1, columns).double()
    top = top.reshape(-1).contiguous()
    g = rest = s.new_empty(0)
    fs: list[Tensor] = []
    gs: list[Tensor] = []
    for step in range(iterations + 1):
        last = step == iterations
        base, total, peaks, sums, plan = sinkhorn_triton(flat, g, rest, a, top, eps, step == 0, last)
        if step > 0:
            log_a, log_total = (torch.where(x > 0, x.double().log(), 0.0) for x in (a, total))
            f = eps * (log_a - log_total) - base.double()
            fs.append(torch.where((a > 0) & ~(total == 0), f, -torch.inf).reshape(shape[:-1]))
        logs = _log_sum(peaks, sums, group)
        if last:
            break
        before = start(b) - top.double().unsqueeze(-1) if step == 0 else gs[-1].reshape(b.shape)
        alive = (b > 0) & (logs != -torch.inf)  # NaN goes on
        g = torch.where(alive, before + eps * (b.log() - logs), -torch.inf)
        gs.append(g.reshape(*shape[:-2], columns))
        high = g.float()
        g, rest = high, torch.where(alive, g - high.double(), 0.0).float()
    residual = share_error(logs.exp(), b).to(s.dtype).reshape(shape[:-2])
    return plan.reshape(shape), fs, gs, residual


def _log_sum(peaks: Tensor, sums: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The logarithms of the sums of columns (matrices, K) in float64, over all programs and processes."""
    peaks = peaks.double()
    highest = reduced(peaks.amax(-2), group, dist.ReduceOp.MAX)
    highest = torch.where(highest > -torch.inf, highest, 0.0)
    total = reduced((sums.double() * torch.exp2(peaks - highest.unsqueeze(-2))).sum(-2), group)
    return total.log() + highest * 0.6931471805599453
