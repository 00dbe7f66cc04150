"""Entmax by Triton kernels as operators of torch: compilers see one node for each direction.

`regard::entmax_triton` and `regard::entmax_triton_backward` have fake tensors, autograd, and a second derivative by
plain operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard import gpu
from regard._torch import forward_mode, transforming
from regard.gpu.rows import entmax_backward, entmax_forward, has_kernel
from regard.maps.entmax.derivative import pullback


def entmax_by_triton(s: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None) -> Tensor | None:
    """Entmax in the dtype of `s` by the kernels, or None where they do not apply; arguments as in `entmax`, checked."""
    if not gpu.usable(s) or not has_kernel(alpha):
        return None
    if not torch.compiler.is_compiling() and (transforming() or forward_mode()):
        return None
    last = dim in (-1, s.dim() - 1)
    if not last:
        s = s.movedim(dim, -1)
        if mask is not None:
            mask = mask[(None,) * (s.dim() - mask.dim())].movedim(dim, -1)
        alpha = alpha.movedim(dim, -1) if isinstance(alpha, Tensor) else alpha
    alphas, number = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
    p: Tensor = entmax_triton(s, mask, alphas, number)
    return p if last else p.movedim(-1, dim)


@torch.library.custom_op("regard::entmax_triton", mutates_args=())
def entmax_triton(s: Tensor, mask: Tensor | None, alphas: Tensor | None, number: float) -> Tensor:
    """Entmax along the last axis of `s`, in its dtype.

    `s`: scores in float32, float16 or bfloat16.
    `mask`: boolean, broadcasts to `s`, or None.
    `alphas`: broadcasts to `s` with size 1 on the last axis, or None.
    `number`: the alpha where `alphas` is None.
    """
    return entmax_forward(s, mask, alphas, number)


@entmax_triton.register_fake
def _(s: Tensor, mask: Tensor | None, alphas: Tensor | None, number: float) -> Tensor:
    return torch.empty_like(s, memory_format=torch.contiguous_format)


@torch.library.custom_op("regard::entmax_triton_backward", mutates_args=())
def entmax_triton_backward(p: Tensor, grad: Tensor, alphas: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
    """The gradients of `entmax_triton` in the scores and per row in alpha; `p` are its weights."""
    return entmax_backward(p, grad, alphas, number)


@entmax_triton_backward.register_fake
def _(p: Tensor, grad: Tensor, alphas: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
    lead = p.shape[:-1] if alphas is not None else (0,)
    slopes = torch.empty(lead, dtype=torch.float32, device=p.device)
    return torch.empty_like(p, memory_format=torch.contiguous_format), slopes


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, alphas, ctx.number = inputs
    ctx.save_for_backward(output, alphas)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
    p, alphas = ctx.saved_tensors
    d, slopes = entmax_triton_backward(p, grad, alphas, ctx.number)
    if alphas is None:
        return d, None, None, None
    return d, None, slopes.unsqueeze(-1).sum_to_size(alphas.shape).to(alphas.dtype), None


entmax_triton.register_autograd(_backward, setup_context=_setup)


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    p, grad, alphas, ctx.number = inputs
    ctx.save_for_backward(p, grad, alphas)


def _backward_twice(ctx: Any, grad: Tensor, grad_slopes: Tensor) -> tuple[Tensor | None, ...]:
    """By plain operations, which can be differentiated any number of times."""
    p, g, alphas = ctx.saved_tensors
    with torch.enable_grad():
        # Views, because the gradient may itself be a function of the weights.
        leaves = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in (p, g)]
        order = ctx.number if alphas is None else alphas.float().expand(*p.shape[:-1], 1)
        if alphas is not None and not order.requires_grad:
            order = order.detach().requires_grad_()
        inputs = leaves if alphas is None else [*leaves, order]
        d, slopes = pullback(leaves[0].float(), order, -1, leaves[1].float())
        outputs, directions = [d], [grad.float()]
        if slopes is not None:
            outputs, directions = [*outputs, slopes], [*directions, grad_slopes.unsqueeze(-1)]
        found = torch.autograd.grad(outputs, inputs, directions, create_graph=True, allow_unused=True)
    dp, dg = (None if x is None else x.to(p.dtype) for x in found[:2])
    dalpha = None if alphas is None or found[2] is None else found[2].sum_to_size(alphas.shape).to(alphas.dtype)
    return dp, dg, dalpha, None


entmax_triton_backward.register_autograd(_backward_twice, setup_context=_setup_backward)
