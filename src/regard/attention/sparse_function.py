"""Attention by sparse maps as a function of autograd: the calls of the kernel, forward and backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from regard import native
from regard.affinity import Dot
from regard.attention.checkpointing import checkpointed
from regard.attention.query_blocks import QueryBlocks
from regard.attention.weights import weights_of
from regard.maps.entmax import Entmax

STORED = 1 << 25  # keys with weight that are stored at most; beyond them weights are computed again from the scores
REGISTER = 16  # numbers in the widest register: weights of short rows are stored in whole ones
PIECES = 16  # pieces of a backward pass at least, if there are so many queries
QUERIES = 128  # in a piece at least


class NotFiniteError(Exception):
    """A number is not finite, or so large that a sum of such numbers may not be."""


@dataclass(frozen=True)
class SparseCase:
    """What is not a tensor that has a gradient.

    `batch`: the leading dimensions, which queries, keys and values have as one axis of heads.
    `blocks`: has the mask, as in `attend`, and the diagonal.
    `alpha`: the order of the map; None if it is a tensor.
    `scale`: factor of the inner products.
    """

    batch: torch.Size
    blocks: QueryBlocks
    alpha: float | None
    scale: float


def sparse_context(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, bias: Tensor | None, case: SparseCase
) -> Tensor:
    """The context (heads, Lq, dv), differentiable in q, k, v and alpha, in float32.

    `q`, `k`, `v`: (heads, L, d).
    `alpha`: one for each head, broadcast to (*batch, 1, 1), or None.
    `bias`: broadcasts to (*batch, Lq, Lk), or None.
    `case`: all other arguments.
    """
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    c: Tensor = _Sparse.apply(q, k, v, alpha, bias, case)
    return c


class _Sparse(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, bias: Tensor | None, case: SparseCase
    ) -> Tensor:
        heads, queries, keys = len(q), q.shape[-2], k.shape[-2]
        kept = int(any(ctx.needs_input_grad))
        room = min(heads * -(-queries // REGISTER) * REGISTER * keys, STORED) if kept else 0
        start = q.new_empty(kept, heads, queries, dtype=torch.int64)
        count = q.new_empty(kept, heads, queries, dtype=torch.int32)
        edge = q.new_empty(kept, heads, queries, 3, dtype=torch.float64)
        supports = start, count, edge, q.new_empty(room, dtype=torch.int32), q.new_empty(room)
        out = q.new_empty(heads, queries, v.shape[-1])
        extras, sizes = _extras(alpha, bias, case, heads, keys)
        widths = heads, queries, keys, q.shape[-1], v.shape[-1]
        inputs = q, k, v, *extras, out, *supports
        if native.call("regard_attend_forward", *inputs, *widths, *sizes, kept, room, case.scale):
            raise NotFiniteError
        ctx.save_for_backward(q, k, v, alpha, bias)
        ctx.supports, ctx.room, ctx.case = supports, room, case
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alpha, bias = ctx.saved_tensors
        case: SparseCase = ctx.case
        if torch.is_grad_enabled():  # create_graph=True: the dense algorithm can be differentiated twice
            leaves = [q, k, v] if alpha is None else [q, k, v, alpha]
            chosen = [x for x, needed in zip(leaves, ctx.needs_input_grad, strict=False) if needed]
            c = _dense_context(q, k, v, alpha, bias, case)
            gradients = iter(torch.autograd.grad(c, chosen, grads[0], create_graph=True))
            return *(next(gradients) if needed else None for needed in ctx.needs_input_grad[:4]), None, None
        heads, queries, keys = len(q), q.shape[-2], k.shape[-2]
        # By sizes alone, so that sums have one order for every number of threads.
        parts = max(1, min(-(-PIECES // heads), queries // QUERIES))
        dq, dk, dv = torch.empty_like(q), q.new_empty(parts, *k.shape), q.new_empty(parts, *v.shape)
        learned = int(ctx.needs_input_grad[3])
        dalpha = q.new_empty(learned, parts, heads, dtype=torch.float64)
        extras, sizes = _extras(alpha, bias, case, heads, keys)
        widths = heads, queries, keys, q.shape[-1], v.shape[-1]
        tensors = q, k, v, grads[0].contiguous(), *extras, *ctx.supports, dq, dk, dv, dalpha
        native.call("regard_attend_backward", *tensors, *widths, *sizes, ctx.room, parts, learned, case.scale)
        slope = None
        if learned:
            per_head = dalpha.sum((0, 1)).view((*case.batch, 1, 1))
            slope = per_head.sum_to_size(alpha.shape).to(alpha.dtype)
        return dq, dk[0] if parts == 1 else dk.sum(0), dv[0] if parts == 1 else dv.sum(0), slope, None, None


def _extras(
    alpha: Tensor | None, bias: Tensor | None, case: SparseCase, heads: int, keys: int
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Mask, bias and alphas as the kernel takes them, and their sizes with the diagonal."""
    mask, mask_of = _matrices(case.blocks.mask, torch.bool, case.batch, heads, keys)
    more, more_of = _matrices(bias, torch.float32, case.batch, heads, keys)
    alphas = _alphas(case.alpha) if alpha is None else alpha.detach().double().expand(*case.batch, 1, 1).reshape(-1)
    diagonal = keys if case.blocks.diagonal is None else case.blocks.diagonal
    sizes = *mask.shape[:2], *more.shape[:2], len(alphas), diagonal
    return (mask, mask_of, more, more_of, alphas.contiguous()), sizes


def _matrices(x: Tensor | None, dtype: torch.dtype, batch: torch.Size, heads: int, keys: int) -> tuple[Tensor, Tensor]:
    """A mask or a bias as matrices (count, 1 or Lq, Lk) without those that repeat, and the place of that of each head.

    `x`: broadcasts to (*batch, Lq, Lk); None gives none.
    `dtype`: of the matrices.
    `batch`: leading dimensions.
    `heads`: their product.
    `keys`: Lk.
    """
    if x is None:
        return _none(dtype, heads, keys)
    x = x[(None,) * max(0, 2 - x.dim())]
    lead = x.shape[:-2]
    count = math.prod(lead)
    of = torch.arange(count, device=x.device).view((1,) * (len(batch) - len(lead)) + lead).expand(batch).reshape(-1)
    return x.detach().expand(*x.shape[:-1], keys).reshape(count, x.shape[-2], keys).contiguous(), of.contiguous()


@functools.lru_cache(maxsize=64)
def _none(dtype: torch.dtype, heads: int, keys: int) -> tuple[Tensor, Tensor]:
    return torch.empty(0, 1, keys, dtype=dtype, device="cpu"), torch.zeros(heads, dtype=torch.int64, device="cpu")


@functools.lru_cache(maxsize=16)
def _alphas(alpha: float) -> Tensor:
    return torch.tensor([alpha], dtype=torch.float64, device="cpu")


def _dense_context(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, bias: Tensor | None, case: SparseCase
) -> Tensor:
    """The same by the dense program, in blocks of queries; arguments as in `sparse_context`."""

    def by_head(x: Tensor) -> Tensor:
        x = x[(None,) * max(0, 2 - x.dim())]
        return x.expand(*case.batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:])

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, *alphas: Tensor) -> Tensor:
        map = Entmax(alphas[0] if alphas else case.alpha or 1.5)
        return weights_of(q, k, Dot(case.scale), map, mask, bias) @ v

    mask = None if case.blocks.mask is None else by_head(case.blocks.mask)
    tensors: Sequence[Tensor] = () if alpha is None else (by_head(alpha),)
    added = None if bias is None else by_head(bias)
    return torch.cat(checkpointed(rows, replace(case.blocks, mask=mask), q, k, v, added, tensors), -2)
