"""The threshold of sparsemax and entmax, without a sort and without gradients.

Every row solves sum_i e_alpha(x_i - lam) = 1 with x = s - max s and the deformed exponential
e_alpha(y) = [1 + delta y]_+^(1 / delta), delta = alpha - 1 (docs/math.md, 2.7 to 2.10). Newton's method on the *norm*
(sum)^delta - 1 is convex and decreasing for 1 < alpha <= 2, so from any lower bound it climbs to the root and needs no
bracket. The threshold of a subset of the row is such a lower bound: solving on the maxima of strided groups first
leaves about two passes over the whole row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check

GROUP = 16  # entries that share one maximum in the first, small problem
CHUNK = 1 << 19  # entries worked on at once: they stay in the cache
MOST_STEPS = 60  # Newton needs at most 11 in practice; this only bounds the loop


def entmax_rows(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """Entmax of float32 or float64 scores along `dim`; `alpha` is a number above one, or a tensor as `s` with size 1
    along `dim`. A row of -inf gives zeros, a row with NaN or +inf an error or, with checks off, NaN."""
    rows = s.movedim(dim, -1)
    shape = rows.shape
    rows = rows.reshape(-1, shape[-1])
    per_row = isinstance(alpha, Tensor)
    alphas = alpha.movedim(dim, -1).expand(*shape[:-1], 1).reshape(-1, 1) if isinstance(alpha, Tensor) else alpha
    step = max(1, CHUNK // shape[-1])
    if len(rows) <= step:
        p = _rows(rows, alphas)
    else:
        p = torch.empty_like(rows, memory_format=torch.contiguous_format)
        for i in range(0, len(rows), step):
            p[i : i + step] = _rows(rows[i : i + step], alphas[i : i + step] if per_row else alphas)  # type: ignore[index]
    return p.reshape(shape).movedim(-1, dim).contiguous()


def _rows(s: Tensor, alpha: float | Tensor) -> Tensor:
    if s.numel() == 0:
        return torch.empty_like(s)
    heads, maxima = _group_maxima(s)
    _check.score_maxima(maxima)
    maxima = maxima.masked_fill(maxima == -math.inf, 0.0)
    if isinstance(alpha, Tensor):
        _check_alphas(alpha)
        if bool((alpha > 2).any()):
            return _bracketed(s, maxima, alpha)
        delta = (alpha - 1).clamp_(min=1e-12 if s.dtype == torch.float32 else 1e-24)
        low = _climb(heads - maxima, _mean_bound(heads - maxima, delta), delta)[1]
        return _climb(s - maxima, low, delta)[0]
    if alpha > 2:
        return _bracketed(s, maxima, s.new_tensor([[alpha]]))
    if alpha not in (1.5, 2.0):
        delta = s.new_tensor([[alpha - 1]])
        low = _climb(heads - maxima, _mean_bound(heads - maxima, delta), delta)[1]
        return _climb(s - maxima, low, delta)[0]
    z = (heads - maxima).mul_(alpha - 1)
    tau = torch.clamp(z.mean(-1, keepdim=True) - z.shape[-1] ** (1 - alpha), min=-1)
    climb = _climb_sparsemax if alpha == 2 else _climb_entmax15
    tau = climb(z, tau)[1]
    z = s - maxima
    return climb(z if alpha == 2 else z.mul_(alpha - 1), tau)[0]


def _group_maxima(s: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima of strided groups, and of rows. They include the row's maximum, so their threshold is at least -1."""
    n = s.shape[-1]
    if n < 4 * GROUP:
        return s, s.amax(-1, keepdim=True)
    width = n // GROUP
    heads = s[:, : GROUP * width].unflatten(-1, (GROUP, width)).amax(-2)
    if n % GROUP:
        heads = torch.cat([heads, s[:, GROUP * width :].amax(-1, keepdim=True)], -1)
    return heads, heads.amax(-1, keepdim=True)


def _check_alphas(alpha: Tensor) -> None:
    if _check.values_checked(alpha) and not bool((alpha >= 1).all()):
        _check.complain(
            "alpha",
            f"a tensor with minimum {float(alpha.min())}",
            "values >= 1",
            "Learn it as alpha = 1 + softplus(a), or clamp it at 1.",
        )


def _mean_bound(x: Tensor, delta: Tensor) -> Tensor:
    """A lower bound of lam by Jensen's inequality: mean(x) + (1 - n^-delta) / delta, and never below zero."""
    return torch.clamp(x.mean(-1, keepdim=True) - torch.expm1(-delta * math.log(x.shape[-1])) / delta, min=0)


def _climb_sparsemax(z: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    tolerance, tiny = 4 * torch.finfo(z.dtype).eps, torch.finfo(z.dtype).tiny
    u = torch.empty_like(z)
    for _ in range(MOST_STEPS):
        torch.sub(z, tau, out=u).clamp_(min=0)
        total = u.sum(-1, keepdim=True)
        excess = total - 1
        if not bool((excess > tolerance).any()):
            break
        tau = tau + excess.clamp_(min=0) / u.gt_(0).sum(-1, keepdim=True).clamp_(min=tiny)
    return u.div_(total.clamp_(min=tiny)), tau


def _climb_entmax15(z: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    tolerance, tiny = 4 * torch.finfo(z.dtype).eps, torch.finfo(z.dtype).tiny
    u = torch.empty_like(z)
    for _ in range(MOST_STEPS):
        torch.sub(z, tau, out=u).clamp_(min=0)
        slope = u.sum(-1, keepdim=True)
        total = u.square_().sum(-1, keepdim=True)
        if not bool((total - 1 > tolerance).any()):
            break
        tau = tau + (total - total.sqrt()).clamp_(min=0) / slope.clamp_(min=tiny)
    return u.div_(total.clamp_(min=tiny)), tau


def _climb(x: Tensor, lam: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Any 1 <= alpha <= 2, with logarithms so that nothing is lost near one; at one itself this is softmax."""
    tolerance, tiny = 16 * torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    for _ in range(MOST_STEPS):
        base = ((x - lam) * delta).clamp_(min=-1)
        p = torch.log1p(base).div_(delta).exp_()
        total = p.sum(-1, keepdim=True)
        if not bool((total - 1 > tolerance).any()):
            break
        slope = base.add_(1).clamp_(min=tiny).reciprocal_().mul_(p).sum(-1, keepdim=True)
        climb = -total * torch.expm1(-delta * total.clamp(min=tiny).log()) / delta
        lam = lam + climb.clamp_(min=0) / slope.clamp_(min=tiny)
    return p.div_(total.clamp_(min=tiny)), lam


def _bracketed(s: Tensor, maxima: Tensor, alpha: Tensor) -> Tensor:
    """Alpha above two: the sum is not convex and its slope is infinite at the edge of the support, so Newton and
    bisection steps take turns inside a bracket, in float64."""
    dtype = s.dtype
    x = (s - maxima).double()
    delta = (alpha.double() - 1).clamp(min=1e-24)
    low = torch.zeros_like(x[:, :1])
    high = (-torch.expm1(-delta * math.log(x.shape[-1])) / delta).expand_as(low)
    lam = low
    for step in range(2 * MOST_STEPS):
        base = ((x - lam) * delta).clamp_(min=-1)
        p = torch.log1p(base).div_(delta).exp_()
        total = p.sum(-1, keepdim=True)
        if not bool(((total - 1).abs() > 1e-14).logical_and(high - low > 1e-15 * high).any()):
            break
        low = torch.where(total > 1, lam, low)
        high = torch.where(total > 1, high, lam)
        slope = torch.where(p > 0, p / (1 + base), 0).sum(-1, keepdim=True)
        newton = lam + (total - 1) / slope
        inside = (newton > low) & (newton < high) & (step % 2 == 0)
        lam = torch.where(inside, newton, (low + high) / 2)
    return (p / total.clamp(min=1e-300)).to(dtype)
