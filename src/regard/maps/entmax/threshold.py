"""The threshold of sparsemax and entmax, without a sort and without derivatives.

Every row solves sum_i e_alpha(x_i - lam) = 1 with x = s - max s and the deformed exponential
e_alpha(y) = [1 + delta y]_+^(1 / delta), delta = alpha - 1 (docs/math.md, 2.7 to 2.10). Newton's method on the *norm*
(sum)^delta - 1, which is convex and decreasing for 1 < alpha <= 2 and concave and increasing for 0 < alpha < 1, climbs
from any lower bound to the root and needs no bracket. The threshold of a subset of the row is such a lower bound:
solving on the maxima of strided groups first leaves about two passes over the whole row.
"""

from __future__ import annotations

import math
from typing import Protocol, final

import torch
from torch import Tensor

from regard import _check, gpu, native
from regard._torch import without_values
from regard.gpu import rows as gpu_rows
from regard.maps.entmax.kernel import entmax_by_kernel, suits
from regard.maps.entmax.steep import steep_rows

GROUP = 16  # entries that share one maximum in the first, small problem
LONG = 512  # rows shorter than this are solved at once
CHUNK = 1 << 20  # entries per chunk, which stay in the cache
EDGE = 0.25  # alpha - 1 from which the edge of the support is solved for
MOST_STEPS = 60  # Newton needs at most 11 in practice; this only bounds the loop


def entmax_rows(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """Entmax of float32 or float64 scores along `dim`; `alpha` is a number above zero, not one, or a tensor as `s` with
    size 1 along `dim`. A row of -inf gives zeros, a row with NaN or +inf an error or, with checks off, NaN."""
    if without_values(s):
        return torch.empty_like(s, memory_format=torch.contiguous_format)
    if native.usable(s) and suits(alpha):
        return entmax_by_kernel(s, alpha, dim)
    if gpu.usable(s) and gpu_rows.has_kernel(alpha):
        alphas, number = (alpha.movedim(dim, -1), 0.0) if isinstance(alpha, Tensor) else (None, alpha)
        return gpu_rows.entmax_forward(s.movedim(dim, -1), None, alphas, number).movedim(-1, dim).contiguous()
    rows = s.movedim(dim, -1)
    shape = rows.shape
    rows = rows.reshape(-1, shape[-1])
    p = torch.empty_like(rows, memory_format=torch.contiguous_format)
    size = max(1, CHUNK // shape[-1])
    # Allocating memory costs more than arithmetic, so all chunks share one buffer.
    scratch = torch.empty_like(rows[:size], memory_format=torch.contiguous_format)
    if isinstance(alpha, Tensor):
        alpha = alpha.movedim(dim, -1).expand(*shape[:-1], 1).reshape(-1, 1)
    _check.scores(rows)
    for i in range(0, len(rows), size):
        chunk = rows[i : i + size]
        _fill(
            p[i : i + size], scratch[: len(chunk)], chunk, alpha[i : i + size] if isinstance(alpha, Tensor) else alpha
        )
    return p.reshape(shape).movedim(-1, dim).contiguous()


def _fill(p: Tensor, scratch: Tensor, s: Tensor, alpha: float | Tensor) -> None:
    """Write the weights of a chunk of rows into p; `scratch` is a buffer of its size."""
    if not isinstance(alpha, Tensor):
        _solve(p, scratch, s, s.new_tensor([[alpha - 1]], dtype=torch.float64), alpha)
        return
    _check_alphas(alpha)
    delta = not_zero(alpha.double() - 1, 1e-12 if s.dtype == torch.float32 else 1e-24)
    # Each solver is precise in its own range of alpha: a row goes to the one that its alpha belongs to.
    solver = ((delta > EDGE).int() + (delta > 1).int()).squeeze(-1)
    present = solver.unique().tolist()
    if len(present) == 1:
        _solve(p, scratch, s, delta)
        return
    for number in present:
        rows = (solver == number).nonzero().squeeze(-1)
        part = torch.empty_like(s[rows])
        _solve(part, scratch[: len(rows)], s[rows], delta[rows])
        p[rows] = part


def _solve(p: Tensor, scratch: Tensor, s: Tensor, delta: Tensor, alpha: float | None = None) -> None:
    """Write the weights of rows into p, whose deltas are all up to EDGE, all above it up to one, or all above one.

    `alpha`: the number where all rows have one.
    """
    heads, maxima = _group_maxima(s)
    maxima = maxima.masked_fill(maxima == -math.inf, 0.0)
    if bool(delta.flatten()[0] > 1):
        p.copy_(steep_rows(s.double() - maxima, delta))
        return
    kind: _Kind
    rate = delta.to(s.dtype)
    if alpha == 2:
        kind = _Sparsemax()
    elif alpha == 1.5:
        kind = _Entmax15()
    else:
        kind = _Edge(rate) if bool(delta.flatten()[0] > EDGE) else _Entmax(rate)
    width = heads.shape[-1]
    shifted = _shifted(scratch[:, :width], heads, maxima, kind)
    # The mean of shifted scores: a sum of the scores themselves can exceed the largest number.
    lam = kind.lower_bound(shifted.mean(-1, keepdim=True), width)
    if heads is not s:
        lam = _climb(p[:, :width], shifted, lam, kind)
        shifted = _shifted(scratch, s, maxima, kind)
    _climb(p, shifted, lam, kind)


def _shifted(x: Tensor, s: Tensor, maxima: Tensor, kind: _Kind) -> Tensor:
    torch.sub(s, maxima, out=x)
    return x if kind.unit == 1 else x.mul_(kind.unit)


def _group_maxima(s: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima of strided groups, and of rows. They include the row's maximum, so their threshold is at least -1."""
    n = s.shape[-1]
    if n < LONG:
        return s, s.amax(-1, keepdim=True)
    width = n // GROUP
    heads = s[:, : GROUP * width].unflatten(-1, (GROUP, width)).amax(-2)
    if n % GROUP:
        heads = torch.cat([heads, s[:, GROUP * width :].amax(-1, keepdim=True)], -1)
    return heads, heads.amax(-1, keepdim=True)


def not_zero(delta: Tensor, tiny: float) -> Tensor:
    """alpha - 1 with either sign, and `tiny` in place of zero: that near, entmax equals softmax to rounding."""
    return torch.where(delta.abs() < tiny, tiny, delta)


def _check_alphas(alpha: Tensor) -> None:
    if _check.values_checked(alpha) and not bool(((alpha > 0) & (alpha < math.inf)).all()):
        _check.complain(
            "alpha",
            f"a tensor with values from {float(alpha.min())} to {float(alpha.max())}",
            "finite values > 0",
            "Learn it as alpha = 1 + softplus(a), sparse, or softplus(a), which may become dense.",
        )


def _climb(p: Tensor, x: Tensor, lam: Tensor, kind: _Kind) -> Tensor:
    """The threshold, by Newton's method from a lower bound `lam`; writes the weights to p, and overwrites x."""
    tolerance, tiny = 4 * torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    for _ in range(MOST_STEPS):
        total = kind.weights(x, lam, p)
        if not bool(((total - 1).abs_() > tolerance).logical_and_(total > 0).any()):
            break
        step = torch.where(total > 0, kind.step(x, lam, p, total), 0.0)
        higher = lam + step.clamp(min=0)
        if not bool((higher > lam).any()):  # also for a row of NaN
            # The last step is below the spacing of numbers near lam, but not of those near x - lam.
            total = kind.weights(x.sub_(lam), step, p)
            break
        lam = higher
    else:
        total = kind.weights(x, lam, p)
    p.div_(total.clamp_(min=tiny))
    return lam


class _Kind(Protocol):
    """The parts that differ between the maps: weights from x - lam, and the Newton step in lam."""

    @property
    def unit(self) -> float:
        """The factor from s - max s to x, chosen so that lam needs none."""

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        """A lower bound of lam by Jensen's inequality, from the mean of x over n entries."""

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        """Write the weights of x - lam into p and return their sum."""

    def step(self, x: Tensor, lam: Tensor, p: Tensor, total: Tensor) -> Tensor:
        """How far lam moves; may overwrite p."""


@final
class _Sparsemax:
    """p = [x - lam]_+; this is Michelot's algorithm."""

    unit = 1.0

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        return torch.clamp(mean - 1 / n, min=-1)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        return torch.sub(x, lam, out=p).clamp_(min=0).sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor, total: Tensor) -> Tensor:
        return (total - 1) / p.gt_(0).sum(-1, keepdim=True)


@final
class _Entmax15:
    """p = [x - lam]_+^2."""

    unit = 0.5

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        return torch.clamp(mean - n**-0.5, min=-1)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        return torch.sub(x, lam, out=p).clamp_(min=0).square_().sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor, total: Tensor) -> Tensor:
        return (total - total.sqrt()) / torch.sub(x, lam, out=p).clamp_(min=0).sum(-1, keepdim=True)


@final
class _Entmax:
    """Any alpha > 0 up to 1 + EDGE, with logarithms so that nothing is lost near one; at one itself this is softmax."""

    unit = 1.0

    def __init__(self, delta: Tensor) -> None:
        self.delta = delta

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        return torch.clamp(mean - torch.expm1(-self.delta * math.log(n)) / self.delta, min=0)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        torch.sub(x, lam, out=p).mul_(self.delta).clamp_(min=-1)
        return p.log1p_().div_(self.delta).exp_().sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor, total: Tensor) -> Tensor:
        base = (x - lam).mul_(self.delta).add_(1).clamp_(min=torch.finfo(x.dtype).tiny)
        return _norm_step(total, p.div_(base).sum(-1, keepdim=True), self.delta)


@final
class _Edge:
    """Alpha from 1 + EDGE to 2: p = [delta (x - lam)]_+^(1 / delta), where lam is the edge of the support.

    Differences of neighbours of the edge are exact, which those of 1 + delta (x - lam) in `_Entmax` are not: of many
    small weights each would be off by the spacing of numbers near one.
    """

    unit = 1.0

    def __init__(self, delta: Tensor) -> None:
        self.delta = delta

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        return torch.maximum(mean - torch.exp(-self.delta * math.log(n)) / self.delta, -1 / self.delta)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        torch.sub(x, lam, out=p).clamp_(min=0).mul_(self.delta)
        return p.log_().div_(self.delta).exp_().sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor, total: Tensor) -> Tensor:
        base = (x - lam).mul_(self.delta).clamp_(min=torch.finfo(x.dtype).tiny)
        return _norm_step(total, p.div_(base).sum(-1, keepdim=True), self.delta)


def _norm_step(total: Tensor, slope: Tensor, delta: Tensor) -> Tensor:
    """Newton's step on (sum)^delta - 1, from the sum of the weights and that of their slopes."""
    return -total * torch.expm1(-delta * total.log()) / delta / slope
