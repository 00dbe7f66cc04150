"""Sinkhorn's iterations in the log domain: safe for any scores, and traceable, because no value is read."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from regard.maps.sinkhorn.products import reduced

LOG_CHUNK = 1 << 17  # entries per chunk in float64, which stay in the cache


def iterated(
    s: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All iterations in the log domain, for `torch.compile` and `torch.func`; arguments as in `sinkhorn`."""
    f = start(a)
    for _ in range(iterations):
        f, g = log_iteration(s, f, a, b, eps, group)
    plan = ((s + f.unsqueeze(-1) + g.unsqueeze(-2)) / eps).exp()
    return plan, f, g, share_error(reduced(plan.detach().sum(-2), group), b.detach())


def rows_alone(
    s: Tensor, a: Tensor, b: Tensor, eps: float, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Zero iterations: only the rows are scaled. Arguments as in `sinkhorn`."""
    wide = widest(s)
    g = start(b).to(wide)
    f = row_potential(s.to(wide), g, a.to(wide), eps)
    plan = ((s.to(wide) + f.unsqueeze(-1) + g.unsqueeze(-2)) / eps).exp().to(s.dtype)
    return plan, f.to(s.dtype), g.to(s.dtype), share_error(reduced(plan.detach().sum(-2), group), b.detach())


def log_iteration(
    s: Tensor, f: Tensor, a: Tensor, b: Tensor, eps: float, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """One iteration in the log domain: columns first, then rows (6.3, 6.4)."""
    # The processes may hold different numbers of rows, but must agree on how the columns are cut.
    parts = [s] if group is not None else s.chunk(pieces(s, -1), -1)
    g = _dual(b, torch.cat([_log_sum_exp((x + f.unsqueeze(-1)) / eps, -2, group) for x in parts], -1), eps)
    return row_potential(s, g, a, eps), g


def row_potential(s: Tensor, g: Tensor, a: Tensor, eps: float) -> Tensor:
    """The f (..., B) that gives the rows their masses, given g (..., K): half an iteration (6.4)."""
    parts = s.chunk(pieces(s, -2), -2)
    return _dual(a, torch.cat([_log_sum_exp((x + g.unsqueeze(-2)) / eps, -1) for x in parts], -1), eps)


def start(a: Tensor) -> Tensor:
    """The potential before the first iteration: zero, and -inf for a row without mass."""
    return torch.where(a > 0, 0.0, -math.inf).to(a.dtype)


def share_error(columns: Tensor, b: Tensor) -> Tensor:
    """Largest relative error of the column sums (..., K) of a plan: (...)."""
    return torch.where(b > 0, (columns / b - 1).abs(), 0).amax(-1)


def pieces(s: Tensor, dim: int) -> int:
    """The number of pieces that `s` is cut into along `dim`: one on devices other than a CPU."""
    if s.device.type != "cpu":
        return 1
    return min(s.shape[dim], -(-s.numel() // LOG_CHUNK))


def widest(x: Tensor) -> torch.dtype:
    """The dtype of potentials and of the log domain: float64, or float32 on MPS, which has no other."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _log_sum_exp(z: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Log-sum-exp along `dim`; -inf with a zero gradient where there is nothing to sum."""
    top = reduced(z.detach().amax(dim, keepdim=True), group, dist.ReduceOp.MAX)
    top = torch.where(top > -math.inf, top, 0)
    total = reduced((z - top).exp().sum(dim), group)
    return torch.where(total > 0, torch.where(total > 0, total, 1).log() + top.squeeze(dim), -math.inf)


def _dual(marginal: Tensor, lse: Tensor, eps: float) -> Tensor:
    """eps (log marginal - lse), and -inf where there is no mass or no entry for it."""
    live = (marginal > 0) & (lse > -math.inf)
    finite = torch.where(live, marginal, 1).log() - torch.where(live, lse, 0)
    return torch.where(live, eps * finite, -math.inf)
