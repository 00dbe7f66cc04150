"""The closed-form derivatives of entmax (docs/math.md, 2.11 and 2.12), for reverse and forward mode."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from regard import _check
from regard._torch import transforming
from regard.maps.entmax.kernel import pullback_by_kernel
from regard.maps.entmax.threshold import entmax_rows


def differentiable_entmax(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """`entmax_rows` with its derivatives in the scores and in a tensor of alphas."""
    p: Tensor = (_Transformed if transforming() else _Entmax).apply(s, alpha, dim)
    return p


class _Transformed(Function):
    """p and its closed-form derivatives, for reverse and forward mode, any number of times, under vmap."""

    @staticmethod
    def forward(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
        return entmax_rows(s, alpha, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha, dim = inputs
        tensors = (output, alpha) if isinstance(alpha, Tensor) else (output,)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.number = None if isinstance(alpha, Tensor) else alpha
        ctx.dim = dim

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, *alphas = ctx.saved_tensors
        grad_s, grad_alpha = pullback(p, alphas[0] if alphas else ctx.number, ctx.dim, grads[0])
        return grad_s, grad_alpha, None

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Any) -> Tensor:
        dim: int = ctx.dim  # type: ignore[attr-defined]
        p, *alphas = ctx.saved_tensors  # type: ignore[attr-defined]
        alpha = alphas[0] if alphas else ctx.number  # type: ignore[attr-defined]
        w, total, unit = _slopes(p, alpha, dim)
        change = torch.zeros_like(p)
        if tangents[0] is not None:
            change = w * (tangents[0] - (w * tangents[0]).sum(dim, keepdim=True) / total)
        if alphas and tangents[1] is not None:
            bend = _bend(p, w, unit, alpha)
            change = change + (bend - w * bend.sum(dim, keepdim=True) / total) * tangents[1]
        return _in_units(change, unit)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], s: Tensor, alpha: float | Tensor, dim: int
    ) -> tuple[Tensor, int]:
        s = s.movedim(in_dims[0], 0) if in_dims[0] is not None else s.expand(info.batch_size, *s.shape)
        if isinstance(alpha, Tensor):
            alpha = alpha.movedim(in_dims[1], 0) if in_dims[1] is not None else alpha.unsqueeze(0)
        return _Transformed.apply(s, alpha, dim), 0


class _Entmax(_Transformed):
    """The same outside of transforms, with less overhead: for a separate `setup_context` torch binds the arguments by
    name at every call, which takes as long as some hundred short rows."""

    setup_context = Function.setup_context

    @staticmethod
    def forward(ctx: Any, s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:  # type: ignore[override]
        p = entmax_rows(s, alpha, dim)
        _Transformed.setup_context(ctx, (s, alpha, dim), p)
        return p


def _slopes(p: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor | float]:
    """w = p^(2 - alpha) on the support, zero elsewhere, in units of its largest; its sum, never zero; and the unit.

    Above alpha = 2 the slope of the smallest weight is the largest, and beyond any number for small weights at large
    alpha: the unit is then the largest finite number. Up to alpha = 2 it is 1. All may be differentiated.
    """
    support = p > 0
    tiny = torch.finfo(p.dtype).tiny
    if isinstance(alpha, float) and alpha == 2:
        w = support.to(p.dtype)
        return w, w.sum(dim, keepdim=True).clamp(min=tiny), 1.0
    inside = torch.where(support, p, 1.0)
    if isinstance(alpha, float) and alpha < 2:
        w = torch.where(support, inside ** (2 - alpha), 0.0)
        return w, w.sum(dim, keepdim=True).clamp(min=tiny), 1.0
    least = inside.detach().amin(dim, keepdim=True)
    if isinstance(alpha, Tensor):
        least = torch.where(alpha > 2, least, 1.0)
    w = torch.where(support, (inside / least) ** (2 - alpha), 0.0)
    unit = (least ** (2 - alpha)).clamp(max=torch.finfo(p.dtype).max)
    return w, w.sum(dim, keepdim=True).clamp(min=tiny), unit


def _in_units(change: Tensor, unit: Tensor | float) -> Tensor:
    """The product, within the finite numbers; `unit` is that of `_slopes`."""
    if isinstance(unit, float):
        return change
    most = torch.finfo(change.dtype).max
    return (change * unit).clamp(-most, most)


def _bend(p: Tensor, w: Tensor, unit: Tensor | float, alpha: Tensor) -> Tensor:
    """d/dalpha of e_alpha(y) at fixed y, from p = e_alpha(y): (p - w - delta p ln p) / delta^2, stable near one, in
    the unit of `w`."""
    support = p > 0
    log = torch.where(support, torch.where(support, p, 1.0).log(), 0.0)
    delta = alpha - 1
    x = -delta * log
    near = x.abs() < 0.5
    small = torch.where(near, x, 0.0)
    series = torch.zeros_like(x)
    for k in range(12, -1, -1):
        series = series * small + 1 / math.factorial(k + 2)
    far = (w - p / unit - p * x / unit) / torch.where(near, 1.0, delta) ** 2
    return -torch.where(near, p * log.square() * series / unit, far)


def pullback(p: Tensor, alpha: float | Tensor, dim: int, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """The gradients in the scores and, where alpha is a tensor, in alpha.

    `p`: the weights.
    `alpha`, `dim`: as in `entmax`.
    `grad`: the gradient in the weights.
    """
    plain = isinstance(alpha, float) and not torch.is_grad_enabled() and _check.readable(grad)
    if plain and isinstance(alpha, float) and (by_kernel := pullback_by_kernel(p, grad, alpha, dim)) is not None:
        return by_kernel, None
    if plain and alpha in (1.5, 2.0):
        # As below, in half the memory, because allocating memory costs more than arithmetic.
        tiny = torch.finfo(p.dtype).tiny
        if alpha == 1.5:
            w = p.clamp(min=tiny).rsqrt_().mul_(p)  # the square root; `sqrt` of zeros is 20 times slower
        else:
            w = torch.gt(p, 0, out=torch.empty_like(p))
        total = w.sum(dim, keepdim=True).clamp_(min=tiny)
        centre = torch.linalg.vecdot(w, grad, dim=dim).unsqueeze(dim) / total
        return (grad - centre).mul_(w), None
    w, total, unit = _slopes(p, alpha, dim)
    centred = grad - (w * grad).sum(dim, keepdim=True) / total
    grad_s = _in_units(w * centred, unit)
    if not isinstance(alpha, Tensor):
        return grad_s, None
    # Summed in units: a sum of numbers that are saturated would overflow, or depend on its order.
    per_row = _in_units((_bend(p, w, unit, alpha) * centred).sum(dim, keepdim=True), unit)
    return grad_s, per_row.sum_to_size(alpha.shape)
