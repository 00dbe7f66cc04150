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
from regard.attention.arguments import four_axes
from regard.attention.checkpointing import checkpointed
from regard.attention.query_blocks import QueryBlocks
from regard.attention.weights import weights_of
from regard.maps.entmax import Entmax

STORED = 1 << 25  # keys with weight that are stored at most; beyond them weights are computed again from the scores
NUMBERED = 1 << 16  # keys that two bytes can number
PIECES = 16  # pieces of a backward pass at least, if there are so many queries
QUERIES = 128  # in a piece at least


class NotFiniteError(Exception):
    """A number is not finite, or so large that a sum of such numbers may not be."""


@dataclass(frozen=True)
class SparseCase:
    """What is not a tensor that has a gradient.

    `batch`: the leading dimensions, of which queries, keys and values have two.
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
    """The context (B, H, Lq, dv) in the layout of q, differentiable in all tensors.

    `q`, `k`, `v`: (B, H, L, d) of one dtype in any layout with the last stride one; half precision is computed in
    float32.
    `alpha`: one for each head, broadcast to (*batch, 1, 1), or None.
    `bias`: broadcasts to (*batch, Lq, Lk), in the dtype of the computation, or None.
    `case`: all other arguments.
    """
    tensors = q, k, v, alpha, bias
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in tensors):
        return _forward(*tensors, case, 0)[0]  # autograd would take a tenth of the time at 49 keys
    c: Tensor = _Sparse.apply(*tensors, case)
    return c


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the kernel computes numbers of `dtype` in.

    >>> computed_dtype(torch.bfloat16)
    torch.float32
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def _forward(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, bias: Tensor | None, case: SparseCase, kept: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The context, and the supports if they are `kept`."""
    (_, inner, queries, _), keys = q.shape, k.shape[-2]
    heads, computed = len(q) * inner, computed_dtype(q.dtype)
    numbers, none = _nothing(computed)
    start = count = numbers[torch.int32]
    edge, place, weight, room = none, numbers[torch.int16], none, 0
    if kept:
        start, count = (q.new_empty(1, heads, queries, dtype=torch.int32) for _ in range(2))
        edge = q.new_empty(1, heads, queries, 4, dtype=computed)
        if case.alpha != 1.0:  # softmax has no lists
            room = min(heads * queries * keys, STORED)
            place, weight = q.new_empty(_units(room, keys), dtype=torch.int16), q.new_empty(room, dtype=computed)
    used = q.new_empty(1, dtype=torch.int64)
    out = _like(q, len(q), v.shape[-1])
    extras, sizes = _extras(alpha, bias, case, heads, keys, computed)
    widths = inner, heads, queries, keys, q.shape[-1], v.shape[-1]
    tensors = *_strided(q, k, v), *extras, *_strided(out), start, count, edge, place, weight, used
    name = f"regard_attend_forward_{native.suffix(q)}"
    if native.call(name, *tensors, *widths, *sizes, kept, room, len(place), case.scale):
        raise NotFiniteError
    if room:
        taken = int(used)  # what was not needed is given back
        place, weight = _first(place, _units(taken, keys)), _first(weight, taken)
    return out, (start, count, edge, place, weight)


class _Sparse(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, bias: Tensor | None, case: SparseCase
    ) -> Tensor:
        out, ctx.supports = _forward(q, k, v, alpha, bias, case, 1)
        ctx.save_for_backward(q, k, v, alpha, bias)
        ctx.case = case
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alpha, bias = ctx.saved_tensors
        case: SparseCase = ctx.case
        # create_graph=True, or a batch of gradients: the dense algorithm can be differentiated in every way.
        if (twice := torch.is_grad_enabled()) or not native.reachable(grads[0]):
            needed = ctx.needs_input_grad[:5]
            chosen = [x for x, asked in zip((q, k, v, alpha, bias), needed, strict=True) if asked]
            with torch.enable_grad():
                c = _dense_context(q, k, v, alpha, bias, case)
            gradients = iter(torch.autograd.grad(c, chosen, grads[0], create_graph=twice))
            return *(next(gradients) if asked else None for asked in needed), None
        (batches, inner, queries, _), keys = q.shape, k.shape[-2]
        heads = batches * inner
        # By sizes alone, so that sums have one order for every number of threads.
        parts = max(1, min(-(-PIECES // heads), queries // QUERIES))
        spare, computed = parts if parts > 1 else 0, computed_dtype(q.dtype)
        dq, dk, dv = _like(q, batches), _like(k, batches), _like(v, batches)
        sums_of_parts = [x.new_empty(spare, heads, keys, x.shape[-1], dtype=computed) for x in (k, v)]
        learned = int(ctx.needs_input_grad[3])
        dalpha = q.new_empty(learned, parts, heads, dtype=torch.float64)
        extras, sizes = _extras(alpha, bias, case, heads, keys, computed)
        groups, sums = _groups(extras[2], heads, parts) if ctx.needs_input_grad[4] else (1, 0)
        dbias = q.new_empty(sums, *extras[2].shape, dtype=computed)
        grad = four_axes(grads[0])
        results = *_strided(dq, dk, dv), *sums_of_parts, dalpha, dbias
        tensors = *_strided(q, k, v, grad), *extras, *ctx.supports, *results
        place, weight = ctx.supports[-2:]
        counts = len(weight), len(place), parts, spare, learned, sums, groups
        widths = inner, heads, queries, keys, q.shape[-1], v.shape[-1]
        native.call(f"regard_attend_backward_{native.suffix(q)}", *tensors, *widths, *sizes, *counts, case.scale)
        in_alpha = in_bias = None
        if learned:
            per_head = dalpha.sum((0, 1)).view((*case.batch, 1, 1))
            in_alpha = per_head.sum_to_size(alpha.shape).to(alpha.dtype)
        if sums:
            per_matrix = dbias[0] if sums == 1 else dbias.sum(0)
            in_bias = per_matrix.view(*bias.shape[:-2], *per_matrix.shape[-2:]).sum_to_size(bias.shape)
        return dq, dk, dv, in_alpha, in_bias, None


def _strided(*tensors: Tensor) -> list[Any]:
    arguments: list[Any] = []
    for x in tensors:
        arguments += native.strided(x)
    return arguments


def _like(x: Tensor, batches: int, width: int | None = None) -> Tensor:
    """New memory for (batches, H, L, width) in the order of axes of x (B, H, L, d)."""
    _, heads, rows, d = x.shape
    width = d if width is None else width
    if heads > 1 and x.stride(1) < x.stride(2):  # heads of a row side by side, as a projection gives them
        return x.new_empty(batches, rows, heads, width).transpose(1, 2)
    return x.new_empty(batches, heads, rows, width)


def _units(entries: int, keys: int) -> int:
    """Numbers of two bytes that so many places of keys take."""
    return entries if keys <= NUMBERED else 2 * entries


def _first(x: Tensor, n: int) -> Tensor:
    """The first n numbers in memory of their own, unless they are most of it."""
    return x[:n].clone() if 4 * n < 3 * len(x) else x[:n]


def _groups(bias: Tensor, heads: int, parts: int) -> tuple[int, int]:
    """In how many groups the heads that share a bias are summed, and how many sums of biases that gives.

    `bias`: the distinct matrices (count, 1 or Lq, Lk).
    `heads`: all of them.
    `parts`: of the queries; those that share a row of the bias have a sum each.
    """
    groups = min(heads // len(bias), max(1, -(-PIECES // (len(bias) * parts))))
    return groups, groups if bias.shape[1] > 1 else groups * parts


def _extras(
    alpha: Tensor | None, bias: Tensor | None, case: SparseCase, heads: int, keys: int, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Mask, bias and alphas as the kernel takes them, biases in `dtype`, and their sizes with the diagonal."""
    mask, mask_of = _matrices(case.blocks.mask, torch.bool, case.batch, heads, keys)
    more, more_of = _matrices(bias, dtype, case.batch, heads, keys)
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


@functools.lru_cache(maxsize=2)
def _nothing(computed: torch.dtype) -> tuple[dict[torch.dtype, Tensor], Tensor]:
    """What is passed where nothing is kept: no whole numbers, by dtype, and no numbers of `computed`."""
    whole = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.int16, torch.int32)}
    return whole, torch.empty(0, dtype=computed, device="cpu")


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

    shape, dtype = (*q.shape[:-1], v.shape[-1]), q.dtype
    q, k, v = (x.flatten(0, 1).to(computed_dtype(dtype)) for x in (q, k, v))

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, *alphas: Tensor) -> Tensor:
        map = Entmax(alphas[0] if alphas else case.alpha or 1.5)
        return weights_of(q, k, Dot(case.scale), map, mask, bias) @ v

    mask = None if case.blocks.mask is None else by_head(case.blocks.mask)
    tensors: Sequence[Tensor] = () if alpha is None else (by_head(alpha),)
    added = None if bias is None else by_head(bias)
    return (
        torch.cat(checkpointed(rows, replace(case.blocks, mask=mask), q, k, v, added, tensors), -2)
        .view(shape)
        .to(dtype)
    )
