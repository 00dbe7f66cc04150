"""The threshold of sparsemax and entmax, without a sort and without derivatives.

Every row solves sum_i e_alpha(x_i - lam) = 1 with x = s - max s and the deformed exponential
e_alpha(y) = [1 + delta y]_+^(1 / delta), delta = alpha - 1 (docs/math.md, 2.7 to 2.10). Newton's method on the *norm*
(sum)^delta - 1, which is convex and decreasing for 1 < alpha <= 2 and concave and increasing for 0 < alpha < 1, climbs
from any lower bound to the root and needs no bracket. The threshold of a subset of the row is such a lower bound:
solving on the maxima of strided groups first leaves about two passes over the whole row.

On a CPU a loop ends when it has converged. On other devices no value is read, because that would wait for the device:
the number of steps is fixed (`steps.py`), and so is which solver a row goes to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check, gpu, native
from regard._torch import without_values
from regard.gpu import rows as gpu_rows
from regard.maps.entmax.formulas import ByEdge, ByLogarithm, Entmax15Formula, RowFormula, SparsemaxFormula
from regard.maps.entmax.kernel import entmax_by_kernel, suits
from regard.maps.entmax.steep import steep_rows
from regard.maps.entmax.steps import newton_steps

GROUP = 16  # entries that share one maximum in the first, small problem
LONG = 512  # rows shorter than this are solved at once
CHUNK = 1 << 20  # entries per chunk, which stay in a CPU's cache; other devices take all at once
EDGE = 0.25  # alpha - 1 from which the edge of the support is solved for


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
    size = max(1, CHUNK // shape[-1] if _check.readable_at_once(s) else len(rows))
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
        _solve(p, scratch, s, s.new_full((1, 1), alpha - 1, dtype=_exact(s)), alpha)
        return
    _check_alphas(alpha)
    delta = not_zero(alpha.to(_exact(s)) - 1, 1e-12 if s.dtype == torch.float32 else 1e-24)
    # Each solver is precise in its own range of alpha: a row goes to the one that its alpha belongs to.
    solver = (delta > EDGE).int() + (delta > 1).int()
    if not _check.readable_at_once(s):
        _solve(p, scratch, s, delta.clamp(max=EDGE), solver=0)
        for number, within in ((1, delta.clamp(EDGE, 1)), (2, delta.clamp(min=1))):
            part = torch.empty_like(p)
            _solve(part, scratch, s, within, solver=number)
            p.copy_(torch.where(solver == number, part, p))
        return
    present = solver.unique().tolist()
    if len(present) == 1:
        _solve(p, scratch, s, delta, solver=present[0])
        return
    for number in present:
        rows = (solver.squeeze(-1) == number).nonzero().squeeze(-1)
        part = torch.empty_like(s[rows])
        _solve(part, scratch[: len(rows)], s[rows], delta[rows], solver=number)
        p[rows] = part


def _exact(s: Tensor) -> torch.dtype:
    """The dtype of alpha - 1 and of the steep solver: float64 on a CPU, which some other devices do not have."""
    return torch.float64 if _check.readable_at_once(s) else s.dtype


def _solve(
    p: Tensor, scratch: Tensor, s: Tensor, delta: Tensor, alpha: float | None = None, solver: int | None = None
) -> None:
    """Write the weights of rows into p, whose deltas are all up to EDGE, all above it up to one, or all above one.

    `alpha`: the number where all rows have one.
    `solver`: 0, 1 or 2 for these three where they have not.
    """
    if solver is None:
        assert alpha is not None
        solver = int(alpha - 1 > EDGE) + int(alpha > 2)
    if solver == 2:
        p.copy_(steep_rows(s.to(delta.dtype), delta))
        return
    heads, maxima = _group_maxima(s)
    maxima = maxima.masked_fill(maxima == -math.inf, 0.0)
    kind: RowFormula
    rate = delta.to(s.dtype)
    if alpha == 2:
        kind = SparsemaxFormula()
    elif alpha == 1.5:
        kind = Entmax15Formula()
    else:
        kind = (ByLogarithm, ByEdge)[solver](rate, 1.0 if alpha is None else abs(alpha - 1))
    width = heads.shape[-1]
    shifted = _shifted(scratch[:, :width], heads, maxima, kind)
    # The mean of shifted scores: a sum of the scores themselves can exceed the largest number.
    lam = kind.lower_bound(shifted.mean(-1, keepdim=True), width)
    if heads is not s:
        lam = _climb(p[:, :width], shifted, lam, kind)
        shifted = _shifted(scratch, s, maxima, kind)
    _climb(p, shifted, lam, kind)


def _shifted(x: Tensor, s: Tensor, maxima: Tensor, kind: RowFormula) -> Tensor:
    torch.sub(s, maxima, out=x)
    return x if kind.unit == 1 else x.mul_(kind.unit)


def _group_maxima(s: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima of strided groups, and of rows. They include the row's maximum, so their threshold is at least -1."""
    n = s.shape[-1]
    if n < LONG or not _check.readable_at_once(s):  # a fixed number of steps gains nothing from a better start
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


def _climb(p: Tensor, x: Tensor, lam: Tensor, kind: RowFormula) -> Tensor:
    """The threshold, by Newton's method from a lower bound `lam`; writes the weights to p, and overwrites x."""
    tolerance, tiny = 4 * torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    look = _check.readable_at_once(x)
    for _ in range(newton_steps(x.shape[-1], kind.rate, tolerance)):
        total, step = kind.step(x, lam, p)
        step = step.nan_to_num_(0.0, 0.0, 0.0)  # of a row without entries; a row of NaN stays one
        higher = lam + step.clamp(min=0)
        if look and not bool(((total - 1).abs_() > tolerance).logical_and_(higher > lam).any()):
            break
        lam = higher
    else:
        _, step = kind.step(x, lam, p)
        step = step.nan_to_num_(0.0, 0.0, 0.0)
    # The last step is below the spacing of numbers near lam, but not of those near x - lam.
    total = kind.weights(x.sub_(lam), step, p)
    p.div_(total.clamp_(min=tiny))
    return lam
