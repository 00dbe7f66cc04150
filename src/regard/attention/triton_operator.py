"""Attention with sparse maps by Triton kernels as operators of torch: compilers see one node for each direction.

The second derivative is that of the dense program.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard import gpu
from regard._torch import without_values
from regard.affinity import Dot
from regard.attention.masks import with_causal
from regard.attention.weights import weights_of
from regard.gpu.attention import Case, SparseResult, attend_backward, attend_forward, tiles_for
from regard.maps.entmax import Entmax


@torch.library.custom_op("regard::attend_triton", mutates_args=())
def attend_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    alphas: Tensor | None,
    number: float,
    scale: float,
    diagonal: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The context (B, H, Lq, dv), and what the backward pass needs; arguments as in `regard.gpu.attention.Case`.

    `q`, `k`, `v`: (B, H, L, d), in any layout.
    """
    return attend_forward(q, k, v, Case(mask, bias, alphas, number, scale, diagonal))


@attend_triton.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    alphas: Tensor | None,
    number: float,
    scale: float,
    diagonal: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    size = tiles_for(q.dtype, max(q.shape[-1], v.shape[-1]), k.shape[-2])
    tiles = -(-queries // size.queries), -(-k.shape[-2] // size.keys)
    return (
        q.new_empty(batch, heads, queries, v.shape[-1]),
        q.new_empty(2, batch, heads, queries, dtype=torch.float32),
        q.new_empty(batch, heads, queries, dtype=torch.float32),
        q.new_empty(batch, heads, *tiles, dtype=torch.uint8),
    )


@torch.library.custom_op("regard::attend_triton_backward", mutates_args=())
def attend_triton_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    alphas: Tensor | None,
    number: float,
    scale: float,
    diagonal: int,
    grad: Tensor,
    context: Tensor,
    threshold: Tensor,
    share: Tensor,
    active: Tensor,
    learned: bool,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients in q, k, v, if `learned` for each query in alpha, and if `biased` in the bias."""
    case = Case(mask, bias, alphas, number, scale, diagonal)
    return attend_backward(q, k, v, case, grad, SparseResult(context, threshold, share, active), learned, biased)


@attend_triton_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    share, learned, biased = others[-4], others[-2], others[-1]
    slopes = torch.empty_like(share) if learned else share.new_empty(0)
    dbias = bias.new_empty(bias.shape) if biased else q.new_empty(0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), slopes, dbias


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, mask, bias, alphas, *ctx.numbers = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(q, k, v, mask, bias, alphas, *output)


def _backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, context, threshold, share, active = ctx.saved_tensors
    biased, learned = ctx.needs_input_grad[4:6]
    if torch.is_grad_enabled() and not without_values(grad):
        return _differentiable(inputs, ctx.numbers, grad, ctx.needs_input_grad)
    solved = context, threshold, share, active
    dq, dk, dv, slopes, dbias = attend_triton_backward(*inputs, *ctx.numbers, grad, *solved, learned, biased)
    alphas = inputs[5]
    dalpha = slopes.sum(-1).sum_to_size(alphas.shape).to(alphas.dtype) if learned else None
    return dq, dk, dv, None, dbias if biased else None, dalpha, None, None, None


attend_triton.register_autograd(_backward, setup_context=_setup)


def _differentiable(
    inputs: list[Any], numbers: list[Any], grad: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients by the dense program, which can be differentiated again."""
    leaves = [x.view_as(x) if wanted else x for x, wanted in zip(inputs, needed, strict=False)]
    q, k, v, mask, bias, alphas = leaves
    number, scale, diagonal = numbers
    pairs = with_causal(mask, diagonal, q.shape[-2], k.shape[-2], q.device)
    with gpu.kernels_for(None):
        map = Entmax(number if alphas is None else alphas.float()[..., None, None])
        w = weights_of(q.float(), k.float(), Dot(scale), map, pairs, None if bias is None else bias.float())
        wanted = [x for x, want in zip(leaves, needed, strict=False) if want]
        found = iter(torch.autograd.grad(w @ v.float(), wanted, grad.float(), create_graph=True))
    return *(next(found) if want else None for want in needed[:6]), None, None, None
