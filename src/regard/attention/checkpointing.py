"""Gradient checkpointing: blocks of queries, each computed again in the backward pass (docs/math.md, 4.6)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from regard._torch import autocasting, forward_mode, in_transform
from regard.attention.arguments import batch_of
from regard.attention.parameters import Parameters
from regard.attention.query_blocks import QueryBlocks
from regard.attention.random_state import RandomState

#: From (q, k, v, mask, bias) of some queries, and the tensors of the affinity and the map, to their context.
Rows = Callable[..., Tensor]


def in_blocks(
    rows: Rows,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    blocks: QueryBlocks,
    parameters: Parameters,
    *,
    random: bool = False,
) -> Tensor:
    """`rows` on blocks of queries; the backward pass computes each block again.

    `rows`: the function of a block.
    `q`, `k`, `v`, `bias`: of the whole call; a causal block gets only the keys that its last query may see.
    `blocks`: where the queries are cut.
    `parameters`: of the affinity and the map; `rows` gets their tensors as last arguments.
    `random`: whether `rows` draws random numbers, which the backward pass then draws again; default False.
    """
    if not torch.is_grad_enabled() or in_transform(q):
        return torch.cat([rows(*blocks.block(q, k, v, bias, at), *parameters.tensors) for at in blocks], -2)
    plain = not torch.compiler.is_compiling() and not autocasting(q.device)
    if parameters.complete and plain and not forward_mode():
        result: Tensor = _Checkpointed.apply(rows, blocks, random, q, k, v, bias, *parameters.tensors)
        return result
    return torch.cat(checkpointed(rows, blocks, q, k, v, bias, parameters.tensors), -2)


def checkpointed(
    rows: Rows, blocks: QueryBlocks, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, parameters: Sequence[Tensor]
) -> list[Tensor]:
    """The contexts of the blocks, each by `torch.utils.checkpoint`, twice differentiable; see `in_blocks`."""
    return [checkpoint(rows, *blocks.block(q, k, v, bias, at), *parameters, use_reentrant=False) for at in blocks]


class _Checkpointed(Function):
    """All blocks as one node of the graph, which allocates its results once.

    One node per block would leave small results between the large, short-lived scores: the heap fragments, and a long
    sequence took ten times the memory that was in use.
    """

    @staticmethod
    def forward(ctx: Any, rows: Rows, blocks: QueryBlocks, random: bool, *tensors: Any) -> Tensor:
        q, k, v, bias, *parameters = tensors
        ctx.rows, ctx.blocks = rows, blocks
        ctx.random_state = RandomState.now(q.device) if random else None
        ctx.save_for_backward(*tensors)
        out: Tensor = q.new_empty(*batch_of(q, k, v), q.shape[-2], v.shape[-1])
        for at in blocks:
            out[..., at, :] = rows(*blocks.block(q, k, v, bias, at), *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        with contextlib.nullcontext() if ctx.random_state is None else ctx.random_state.restored():
            if torch.is_grad_enabled():  # create_graph=True: for a second derivative
                q, k, v, bias, *parameters = tensors
                c = torch.cat(checkpointed(ctx.rows, ctx.blocks, q, k, v, bias, parameters), -2)
                chosen = [x for x, w in zip(tensors, needed, strict=True) if w]
                gradients = iter(torch.autograd.grad(c, chosen, grads[0], create_graph=True, allow_unused=True))
                return None, None, None, *(next(gradients) if w else None for w in needed)
            sums = [torch.zeros_like(x) if w else None for x, w in zip(tensors, needed, strict=True)]
            for at in ctx.blocks:
                _add_block(ctx.rows, ctx.blocks, at, tensors, sums, grads[0][..., at, :])
        return None, None, None, *sums


def _add_block(
    rows: Rows, blocks: QueryBlocks, at: slice, tensors: Sequence[Any], sums: Sequence[Tensor | None], grad: Tensor
) -> None:
    """Add the gradients of one block to `sums`.

    `rows`, `blocks`: as in `in_blocks`.
    `at`: the queries of the block.
    `tensors`: q, k, v, bias and the tensors of affinity and map.
    `sums`: the gradient of each, None where none is needed.
    `grad`: with respect to the context of the block.
    """
    q, k, v, bias, *parameters = tensors
    q, k, v, mask, bias = blocks.block(q, k, v, bias, at)
    leaves: list[Any] = [q, k, v, bias, *parameters]
    for place, total in enumerate(sums):
        if leaves[place] is not None:
            leaves[place] = leaves[place].detach().requires_grad_(total is not None)
    with torch.enable_grad():
        c = rows(*leaves[:3], mask, *leaves[3:])
    chosen = [x for x, total in zip(leaves, sums, strict=True) if total is not None]
    gradients = iter(torch.autograd.grad(c, chosen, grad, allow_unused=True))
    for place, total in enumerate(sums):
        if total is None or (part := next(gradients)) is None:
            continue
        if place == 0:
            total[..., at, :] = part
        elif place < 3:
            total[..., : part.shape[-2], :] += part
        elif place == 3:
            blocks.part(total, at).add_(part)
        else:
            total += part
