"""The launches of the Triton kernels of attention with sparse maps: one forward, two backward.

Memory beside the tensors: two numbers for each query, and five bytes for each pair of a tile of queries and a tile of
keys (at 16,384 tokens 0.3 MB for each head). Tiles are a small table by dtype; docs/guides/gpu.md has the
registers that the compiler needs for each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.gpu._choose import device_of
from regard.gpu.rows import kind_of

#: From torch's setting of the precision of products of float32: exact, or three products of TF32, which are as good.
PRECISIONS = {"highest": "ieee", "high": "tf32x3", "medium": "tf32x3"}
#: Features of queries, keys and values that one program holds.
WIDEST = {torch.float32: 64, torch.float16: 128, torch.bfloat16: 128}
MOST_HEADS = 65535  # of all examples together: the second axis of a grid of programs


class Tiles(NamedTuple):
    """How many queries and keys are in a tile; and the warps of the three kernels."""

    queries: int
    keys: int
    forward: int
    of_queries: int
    of_keys: int


class SparseResult(NamedTuple):
    """The context (B, H, Lq, dv); tops and thresholds from them (2, B, H, Lq); the factor of the weights (B, H, Lq);
    which tiles of keys have weight (B, H, tiles of queries, tiles of keys)."""

    context: Tensor
    threshold: Tensor
    share: Tensor
    active: Tensor


class Case(NamedTuple):
    """What is not q, k, v. `mask`, `bias`: broadcast to (B, H, Lq, Lk), or None. `alphas`: broadcast to (B, H), or
    None. `number`: alpha, where `alphas` is None. `diagonal`: query i sees keys up to i + diagonal. `precision`: of
    products of float32: "ieee", "tf32x3" or "tf32"; None for that of `torch.get_float32_matmul_precision`."""

    mask: Tensor | None
    bias: Tensor | None
    alphas: Tensor | None
    number: float
    scale: float
    diagonal: int
    precision: str | None = None


def tiles_for(dtype: torch.dtype) -> Tiles:
    """The tiles that spill no register up to the widest features.

    >>> tiles_for(torch.bfloat16).keys
    32
    """
    if dtype == torch.float32:
        return Tiles(16, 32, 4, 4, 4)  # with more queries, products of float32 spill on sm_80
    return Tiles(64, 32, 8, 8, 8)  # with 64 keys the gradient of the keys spills on sm_80


def attend_forward(q: Tensor, k: Tensor, v: Tensor, case: Case) -> SparseResult:
    """The context of queries (B, H, Lq, d), keys (B, H, Lk, d) and values (B, H, Lk, dv), in any layout."""
    from regard.gpu import _attention_kernels

    batch, heads, queries, _ = q.shape
    keys, width = k.shape[-2], v.shape[-1]
    size = tiles_for(q.dtype)
    grid = -(-queries // size.queries), batch * heads
    tiles = -(-keys // size.keys)
    context = q.new_empty(batch, heads, queries, width)
    threshold = q.new_empty(2, batch, heads, queries, dtype=torch.float32)
    share = q.new_empty(batch, heads, queries, dtype=torch.float32)
    near = q.new_empty(batch, heads, grid[0], tiles, dtype=torch.float32)
    active = q.new_empty(batch, heads, grid[0], tiles, dtype=torch.uint8)
    tensors, strides, flags = _arguments(q, k, v, case)
    with device_of(q):
        _attention_kernels.attend_tile[grid](
            *tensors,
            context,
            threshold,
            share,
            near,
            active,
            *_sizes(q, k, case),
            *strides,
            **flags,
            TOLERANCE=2.0**-11 if q.dtype == torch.float32 else 2.0**-8,
            BM=size.queries,
            BN=size.keys,
            num_warps=size.forward,
            num_stages=2,
        )
    return SparseResult(context, threshold, share, active)


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, case: Case, grad: Tensor, result: SparseResult, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients in q, k, v and, if `learned`, for each query in alpha (B, H, Lq); the last is empty otherwise."""
    from regard.gpu import _attention_kernels

    batch, heads, queries, _ = q.shape
    keys = k.shape[-2]
    size = tiles_for(q.dtype)
    grad = grad.contiguous()
    tiles_q, tiles_k = -(-queries // size.queries), -(-keys // size.keys)
    dq = q.new_empty(q.shape)
    dk, dv = k.new_empty(k.shape), v.new_empty(v.shape)
    centre = torch.empty_like(result.share)
    slopes = torch.empty_like(result.share) if learned else result.share.new_empty(0)
    tensors, strides, flags = _arguments(q, k, v, case)
    solved = result.threshold, result.share, result.active
    with device_of(q):
        _attention_kernels.attend_backward_queries[(tiles_q, batch * heads)](
            *tensors,
            grad,
            *solved,
            dq,
            centre,
            slopes,
            *_sizes(q, k, case),
            *strides,
            **flags,
            LEARNED=learned,
            BM=size.queries,
            BN=size.keys,
            num_warps=size.of_queries,
            num_stages=2,
        )
    sizes = _sizes(q, k, case)
    with device_of(q):
        _attention_kernels.attend_backward_keys[(tiles_k, batch * heads)](
            *tensors,
            grad,
            *solved,
            centre,
            dk,
            dv,
            *sizes[:3],
            tiles_q,
            *sizes[3:],
            *strides,
            **flags,
            BM=size.queries,
            BN=size.keys,
            num_warps=size.of_keys,
            num_stages=1,
        )
    return dq, dk, dv, slopes


def _precision() -> str:
    """Of products of float32. AMD's compiler has exact ones alone."""
    return "ieee" if torch.version.hip else PRECISIONS[torch.get_float32_matmul_precision()]


def _sizes(q: Tensor, k: Tensor, case: Case) -> tuple[Any, ...]:
    return q.shape[1], q.shape[-2], k.shape[-2], case.scale, case.number - 1, case.diagonal


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, case: Case
) -> tuple[tuple[Tensor, ...], tuple[int, ...], dict[str, Any]]:
    """The tensors that every kernel reads, their strides, and its constants."""
    batch, heads, queries, width = q.shape
    pairs = batch, heads, queries, k.shape[-2]
    mask = None if case.mask is None else case.mask.expand(pairs).view(torch.uint8)
    bias = None if case.bias is None else case.bias.expand(pairs)
    alphas = None if case.alphas is None else case.alphas.expand(batch, heads)
    tensors = q, k, v, *(q if x is None else x for x in (mask, bias, alphas))
    strides: list[int] = [*q.stride(), *k.stride(), *v.stride()]
    for x, axes in ((mask, 4), (bias, 4), (alphas, 2)):
        strides += [0] * axes if x is None else x.stride()
    flags = {
        "D": width,
        "DV": v.shape[-1],
        "KIND": 3 if alphas is not None else kind_of(case.number),
        "HAS_MASK": mask is not None,
        "HAS_BIAS": bias is not None,
        "HAS_ALPHA": alphas is not None,
        "PRECISION": case.precision or _precision(),
        "BD": max(16, 1 << (width - 1).bit_length()),
        "BV": max(16, 1 << (v.shape[-1] - 1).bit_length()),
    }
    return tensors, tuple(strides), flags
