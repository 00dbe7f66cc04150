"""Sinkhorn's iterations by matrix-vector products, each proved safe, with the log domain as fallback.

Every plan here is exp((s + f + g) / eps), with f (..., B) on the rows and g (..., K) on the columns. Around reference
potentials f0, g0 it is diag(u) M diag(v), with M = exp((s + f0 + g0) / eps), u = exp((f - f0) / eps) and
v = exp((g - g0) / eps) (docs/math.md, 6.5). Half an iteration is then one product of M and a vector, and the matrix
is never rewritten. The danger is that an entry of M underflows, and u and v grow until it would have mattered.
Such an entry is below `tiny`, so the error has a bound in known quantities (6.6). Iterations are accepted
only while it is below the rounding error. Then the potentials are absorbed into a new M, which is good for at least one
more iteration; only where the first M fails is an iteration run in the log domain.

The bound is a number that must be read. On devices other than a CPU, without a `tol`, nothing is: all iterations run in
the log domain, by a Triton kernel or in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from regard import _check
from regard.maps.sinkhorn.log_domain import log_iteration, pieces, share_error, start, widest
from regard.maps.sinkhorn.products import quotient, reduced, scaled_rows, times_rows
from regard.maps.sinkhorn.triton import sweepable, swept

BLOCK = 10  # iterations between two checks of the bound


@dataclass
class Scaling:
    """One problem, and the state of its solution."""

    s: Tensor
    a: Tensor
    b: Tensor
    eps: float
    group: dist.ProcessGroup | None
    top: Tensor  # (...), the largest score
    keep: bool  # whether to store the potentials of every iteration
    fs: list[Tensor] = field(default_factory=list)
    gs: list[Tensor] = field(default_factory=list)
    iterations: int = 0

    def solve(self, most: int, tol: float | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Plan, potentials f and g, and residual, after at most `most` iterations, of which there is at least one."""
        if tol is None and not _check.readable_at_once(self.s):
            return self._unread(most)
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
            f0, g0, matrix = f, g, gibbs_kernel(s, g, a, eps)
            u, v, ahead = (a > 0).to(s.dtype), ones, None
        assert v is not None
        columns = reduced(times_rows(u, matrix), self.group) if ahead is None else ahead
        residual = share_error(columns * v, b)
        return matrix.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2)), f, g, residual

    def _unread(self, iterations: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same in a fixed number of iterations, in the log domain, where no value is read."""
        s, a, b, eps = self.s, self.a, self.b, self.eps
        self.iterations = iterations
        if sweepable(s):
            plan, fs, gs, residual = swept(s, a, b, self.top, eps, iterations, self.group)
            for f, g in zip(fs, gs, strict=True):
                self._record(f, g)
            return plan, fs[-1], gs[-1], residual
        wide = widest(s)
        scores, of_rows, of_columns = s.to(wide), a.to(wide), b.to(wide)
        f = start(of_rows)
        for _ in range(iterations):
            f, g = log_iteration(scores, f, of_rows, of_columns, eps, self.group)
            self._record(f, g)
        plan = gibbs_kernel(s, g, a, eps)
        return plan, f, g, share_error(reduced(plan.sum(-2), self.group), b)

    def _record(self, f: Tensor, g: Tensor) -> None:
        if self.keep:
            self.fs.append(f)
            self.gs.append(g)

    def _products(
        self, matrix: Tensor, u: Tensor, v: Tensor | None, most: int, tol: float | None, ahead: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor], bool, bool, Tensor | None]:
        """Up to `most` iterations on one kernel.

        `matrix`: the kernel M.
        `u`, `v`: scalings of rows and columns; v is None before the first iteration.
        `most`: the largest number of iterations.
        `tol`: the residual at which to stop, or None.
        `ahead`: u M if it is known already, else None.

        Returns u and v of each safe iteration, whether all were safe, whether `tol` was met, and u M or None.
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


def gibbs_kernel(s: Tensor, g: Tensor, a: Tensor, eps: float) -> Tensor:
    """exp((s + f + g) / eps) with the f that gives the rows their masses `a`, in float64 and then the dtype of s.

    However coarse the rounding of g may be beside eps, the rows are exact, and the columns show the error.
    """
    out = torch.empty_like(s)
    step = -(-s.shape[-2] // pieces(s, -2))
    for i in range(0, s.shape[-2], step):
        rows = slice(i, i + step)
        z = s[..., rows, :] + g.to(widest(s)).unsqueeze(-2)
        top = z.amax(-1, keepdim=True)
        z = z.sub_(torch.where(top > -math.inf, top, 0)).div_(eps).exp_()
        out[..., rows, :] = z.mul_(quotient(a[..., rows].unsqueeze(-1), z.sum(-1, keepdim=True)))
    return out


def underflow_bound(scalings: Tensor, sums: Tensor, marginal: Tensor) -> Tensor:
    """Bound (6.6) on the relative error that underflow causes in sums = scalings . kernel, over all but the first axis.

    scalings (T, ..., n) and sums (T, ..., m) with their marginal (..., m): (T,), inf where a sum is not a number.
    """
    smallest = torch.where(marginal > 0, sums, math.inf).amin(-1)
    bound = torch.finfo(sums.dtype).tiny * (scalings.sum(-1) + scalings.shape[-1]) / smallest
    bound = torch.where(sums.isfinite().all(-1), bound, math.inf).nan_to_num(nan=math.inf)
    return bound.flatten(1).amax(1) if bound.dim() > 1 else bound
