"""Total-variation smoothing of flat grids and its derivative: by the native kernels, or by the operator elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from regard import _check, native
from regard._torch import forward_mode
from regard.maps.tvmax.kernel import region_means_by_kernel, regions_by_kernel
from regard.maps.tvmax.operator import tv_regions


def smoothed(s: Tensor, gamma: float | Tensor, mask: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """Smoothed scores (2.5.3) minus the middle of their range, and that middle, which has no gradient.

    `s`: scores (..., n), float32 or float64, where -inf does not take part.
    `gamma`: a number or a tensor that broadcasts to (..., 1).
    `mask`: boolean, broadcasts to `s`, or None.
    `width`: of the grids.

    Returns (..., n), with -inf where a cell does not take part, and (..., 1). A constant added to all scores changes no
    weight; centred scores keep the means precise.
    """
    gamma = torch.as_tensor(gamma, dtype=s.dtype, device=s.device)
    one_per_grid = gamma.expand(*s.shape[:-1], 1)
    if s.numel() > 0 and not torch.compiler.is_compiling() and native.usable(s, gamma) and not forward_mode():
        n = s.shape[-1]
        part = None if mask is None else mask.expand(s.shape).reshape(-1, n).contiguous()
        smooth, middle = _Smoothed.apply(s.reshape(-1, n), one_per_grid.reshape(-1, 1), part, width)
        return smooth.view(s.shape), middle.view(one_per_grid.shape)
    taking_part = s != -torch.inf if mask is None else (s != -torch.inf) & mask
    scores = s.detach()
    high = scores.masked_fill(~taking_part, -torch.inf)
    _check.scores(high)
    high = high.amax(-1, keepdim=True)
    low = scores.masked_fill(~taking_part, torch.inf).amin(-1, keepdim=True)
    middle = torch.where(high >= low, high / 2 + low / 2, 0)
    x = torch.where(taking_part, s - middle, 0)
    labels, pull = tv_regions(x.detach(), one_per_grid.detach(), taking_part, width)
    return (_means(x, labels) + gamma * pull).masked_fill(~taking_part, -torch.inf), middle


def _means(x: Tensor, labels: Tensor) -> Tensor:
    """The mean of x (..., n) over the cells that share a label: the Jacobian (2.5.8), which is its own transpose."""
    if labels.dtype == torch.int32:
        if native.usable(x) and not forward_mode():
            means: Tensor = _Means.apply(x, labels)
            return means
        labels = labels.long()
    size = torch.zeros_like(x).scatter_add(-1, labels, torch.ones_like(x)).gather(-1, labels)
    return torch.zeros_like(x).scatter_add(-1, labels, x / size).gather(-1, labels)


class _Smoothed(Function):
    """Smoothing of grids (rows, n) by the kernel."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, gamma: Tensor, mask: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        s = s.contiguous()
        found = regions_by_kernel(s, gamma.contiguous(), mask, width)
        if not found.finite:
            _check.scores(s if mask is None else s.masked_fill(~mask, -torch.inf))
        ctx.mark_non_differentiable(found.middle)
        ctx.save_for_backward(found.labels, found.pull)
        return found.smooth, found.middle

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        labels, pull = ctx.saved_tensors
        grad_s = _means(grads[0], labels) if ctx.needs_input_grad[0] else None
        grad_gamma = (grads[0] * pull).sum(-1, keepdim=True) if ctx.needs_input_grad[1] else None
        return grad_s, grad_gamma, None, None


class _Means(Function):
    """`_means` by the kernel; its derivative is itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(labels)
        return region_means_by_kernel(x.contiguous(), labels)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _means(grads[0], *ctx.saved_tensors), None
