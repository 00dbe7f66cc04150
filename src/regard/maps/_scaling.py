"""Sinkhorn's iterations by matrix-vector products, each proved safe, with the log domain to fall back on.

Every plan here is exp((s + f + g) / eps), with f (..., B) on the rows and g (..., K) on the columns. Around reference
potentials f0, g0 it is diag(u) M diag(v), with M = exp((s + f0 + g0) / eps), u = exp((f - f0) / eps) and
v = exp((g - g0) / eps) (docs/math.md, 6.5). Half an iteration is then one product of M and a vector, and the matrix
is never rewritten. What can go wrong is that an entry of M underflows and u and v grow until it would have counted.
Such an entry is below `tiny`, so the error has a bound made of quantities at hand (6.6). Iterations are kept only
while it is below the rounding error. Then the potentials are absorbed into a new M, which is good for at least one
more iteration; only where the very first M does not do is an iteration run in the log domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from regard import native

BLOCK = 10  # iterations between two looks at the bound
CHUNK = 1 << 17  # entries worked on at once in float64: they stay in the cache
SPLIT = 16  # parts of a large matrix that meet their vectors one core each


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """x / y for a y that is only zero where x is, and zero there, with a finite gradient."""
    return x / torch.where(y == 0, 1, y)


def reduced(x: Tensor, group: dist.ProcessGroup | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """`x` summed (or whatever `op` says) over the processes of `group`."""
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
    """M v: (..., B, K) and (..., K) to (..., B). The vector stands on the left: products with a row are much faster."""
    if _tiny(matrix):
        return (matrix * v.unsqueeze(-2)).sum(-1)
    parts, rows = _parts(matrix)
    if parts is None:
        return (v.unsqueeze(-2) @ matrix.mT).squeeze(-2)
    head = torch.bmm(v.expand(SPLIT, 1, -1), parts.mT).flatten()
    return head if rows == matrix.shape[0] else torch.cat([head, matrix[rows:] @ v])


def _tiny(matrix: Tensor) -> bool:
    """Many small matrices: calling a product for each of them would take longer than the product."""
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
    """M v, the u = a / (M v) that gives rows their masses, and u M where it comes with them: (..., B) twice, (..., K).

    The native kernel reads a row once for both products. Over several processes the columns need all of them.
    """
    if group is not None or not matrix.is_contiguous() or not native.usable(matrix, v, a):
        sums = times_columns(matrix, v)
        return sums, quotient(a, sums), None
    sums, u, columns = a.new_empty(a.shape), a.new_empty(a.shape), v.new_empty(v.shape)
    sizes = matrix.shape[:-2].numel(), *matrix.shape[-2:]
    given = matrix, v.contiguous(), a.contiguous()
    native.call(f"regard_scale_{native.suffix(matrix)}", *given, sums, u, columns, *sizes)
    return sums, u, columns


def log_iteration(
    s: Tensor, f: Tensor, a: Tensor, b: Tensor, eps: float, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """One iteration in the log domain: columns first, then rows (6.3, 6.4)."""
    # The processes may hold different numbers of rows, but must agree on how the columns are cut.
    parts = [s] if group is not None else s.chunk(_pieces(s, -1), -1)
    g = _dual(b, torch.cat([_log_sum_exp((x + f.unsqueeze(-1)) / eps, -2, group) for x in parts], -1), eps)
    return row_potential(s, g, a, eps), g


def row_potential(s: Tensor, g: Tensor, a: Tensor, eps: float) -> Tensor:
    """The f (..., B) that gives the rows their masses, given g (..., K): half an iteration (6.4)."""
    parts = s.chunk(_pieces(s, -2), -2)
    return _dual(a, torch.cat([_log_sum_exp((x + g.unsqueeze(-2)) / eps, -1) for x in parts], -1), eps)


def _pieces(s: Tensor, dim: int) -> int:
    return min(s.shape[dim], -(-s.numel() // CHUNK))


def _log_sum_exp(z: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Log-sum-exp along `dim`; -inf with a zero gradient where there is nothing to sum."""
    top = reduced(z.detach().amax(dim, keepdim=True), group, dist.ReduceOp.MAX)
    top = torch.where(top > -math.inf, top, 0)
    total = reduced((z - top).exp().sum(dim), group)
    return torch.where(total > 0, torch.where(total > 0, total, 1).log() + top.squeeze(dim), -math.inf)


def _dual(marginal: Tensor, lse: Tensor, eps: float) -> Tensor:
    """eps (log marginal - lse), and -inf where there is no mass or nothing that could carry it."""
    live = (marginal > 0) & (lse > -math.inf)
    finite = torch.where(live, marginal, 1).log() - torch.where(live, lse, 0)
    return torch.where(live, eps * finite, -math.inf)


def start(a: Tensor) -> Tensor:
    """The potential before the first iteration: zero, and -inf for a row without mass."""
    return torch.where(a > 0, 0.0, -math.inf).to(a.dtype)


def kernel(s: Tensor, g: Tensor, a: Tensor, eps: float) -> Tensor:
    """exp((s + f + g) / eps) with the f that gives the rows their masses `a`, in float64 and then the dtype of s.

    However coarse the rounding of g may be beside eps, the rows are exact, and the columns show the error.
    """
    out = torch.empty_like(s)
    step = -(-s.shape[-2] // _pieces(s, -2))
    for i in range(0, s.shape[-2], step):
        rows = slice(i, i + step)
        z = s[..., rows, :] + g.double().unsqueeze(-2)
        top = z.amax(-1, keepdim=True)
        z = z.sub_(torch.where(top > -math.inf, top, 0)).div_(eps).exp_()
        out[..., rows, :] = z.mul_(quotient(a[..., rows].unsqueeze(-1), z.sum(-1, keepdim=True)))
    return out


def share_error(columns: Tensor, b: Tensor) -> Tensor:
    """Largest relative error of the column sums (..., K) of a plan: (...)."""
    return torch.where(b > 0, (columns / b - 1).abs(), 0).amax(-1)


def underflow_bound(scalings: Tensor, sums: Tensor, marginal: Tensor) -> Tensor:
    """Bound (6.6) on the relative error that underflow causes in sums = scalings . kernel, over all but the first axis.

    scalings (T, ..., n) and sums (T, ..., m) with their marginal (..., m): (T,), inf where a sum is not a number.
    """
    smallest = torch.where(marginal > 0, sums, math.inf).amin(-1)
    bound = torch.finfo(sums.dtype).tiny * (scalings.sum(-1) + scalings.shape[-1]) / smallest
    bound = torch.where(sums.isfinite().all(-1), bound, math.inf).nan_to_num(nan=math.inf)
    return bound.flatten(1).amax(1) if bound.dim() > 1 else bound


@dataclass
class Scaling:
    """One problem, and how far it has been solved."""

    s: Tensor
    a: Tensor
    b: Tensor
    eps: float
    group: dist.ProcessGroup | None
    top: Tensor  # (...), the largest score
    keep: bool  # whether the potentials of every iteration are needed later
    fs: list[Tensor] = field(default_factory=list)
    gs: list[Tensor] = field(default_factory=list)
    iterations: int = 0

    def solve(self, most: int, tol: float | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Plan, potentials f and g, and residual, after at most `most` iterations."""
        s, a, b, eps = self.s, self.a, self.b, self.eps
        f, g = start(a).double(), start(b).double()
        f0, g0 = torch.zeros_like(f), torch.zeros_like(g) - self.top.unsqueeze(-1)
        matrix = (s - self.top[..., None, None]).mul_(1 / eps).exp_()
        ones, u, v = (b > 0).to(s.dtype), (a > 0).to(s.dtype), None
        block, met, ahead = BLOCK, False, None
        while self.iterations < most and not met:
            n = min(block, most - self.iterations)
            us, vs, safe, met, ahead = self._products(matrix, u, v, n, tol, ahead)
            for t in range(0 if self.keep else max(0, len(vs) - 1), len(vs)):
                f, g = f0 + eps * us[t].double().log(), g0 + eps * vs[t].double().log()
                self._record(f, g)
            if vs:
                u, v = us[-1], vs[-1]
                self.iterations += len(vs)
            block = min(BLOCK, 2 * block)
            if safe:
                continue
            if not vs:
                before = g
                f, g = log_iteration(s, f, a.double(), b.double(), eps, self.group)
                self._record(f, g)
                self.iterations += 1
                # The new g is what the old one should have been: their difference is the old plan's error.
                met = tol is not None and bool((share_error(((before - g) / eps).exp() * b, b) <= tol).all())
            block = max(1, len(vs))
            f0, g0, matrix = f, g, kernel(s, g, a, eps)
            u, v, ahead = (a > 0).to(s.dtype), ones, None
        assert v is not None
        columns = reduced(times_rows(u, matrix), self.group) if ahead is None else ahead
        residual = share_error(columns * v, b)
        return matrix.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2)), f, g, residual

    def _record(self, f: Tensor, g: Tensor) -> None:
        if self.keep:
            self.fs.append(f)
            self.gs.append(g)

    def _products(
        self, matrix: Tensor, u: Tensor, v: Tensor | None, most: int, tol: float | None, ahead: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor], bool, bool, Tensor | None]:
        """Up to `most` iterations on one kernel: scalings of those that are safe, whether all were, and `tol` met.

        `ahead` is u M where it is known already, and so is what is returned last.
        """
        us, vs, columns, rows, met = [u], [], [], [], False
        for _ in range(most):
            ahead = reduced(times_rows(us[-1], matrix), self.group) if ahead is None else ahead
            columns.append(ahead)
            if tol is not None and v is not None:
                met = bool((share_error(columns[-1] * v, self.b) <= tol).all())
                if met:
                    break
            v = quotient(self.b, columns[-1])
            vs.append(v)
            sums, u, ahead = scaled_rows(matrix, v, self.a, self.group)
            rows.append(sums)
            us.append(u)
        bound = underflow_bound(torch.stack(us[: len(columns)]), torch.stack(columns), self.b)
        if rows:
            of_rows = underflow_bound(torch.stack(vs), torch.stack(rows), self.a)
            bound = torch.cat([torch.maximum(bound[: len(rows)], of_rows), bound[len(rows) :]])
        bound = reduced(bound, self.group, dist.ReduceOp.MAX)
        if self.group is not None:
            bound = bound * dist.get_world_size(self.group)
        safe = int((bound <= torch.finfo(matrix.dtype).eps).cumprod(0).sum())
        done = min(safe, len(vs))
        return us[1 : 1 + done], vs[:done], safe == len(bound), met and safe == len(bound), ahead
