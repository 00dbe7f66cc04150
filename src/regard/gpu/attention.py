"""The launches of the Triton kernels of attention with sparse maps: one forward, two backward, one more for a bias.

Memory beside the tensors: two numbers for each query, and five bytes for each pair of a tile of queries and a tile of
keys (at 16,384 tokens 0.3 MB for each head). Tiles are a small table by dtype; docs/guides/gpu.md has the
registers that the compiler needs for each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.gpu._choose import device_of
from regard.gpu._tune import tuned
from regard.gpu.rows import kind_of

#: From torch's setting of the precision of products of float32: exact; three products of TF32, which are as good;
#: TF32, whose numbers have 10 bits.
PRECISIONS = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
#: Features of queries, keys and values that one program holds.
WIDEST = {torch.float32: 64, torch.float16: 128, torch.bfloat16: 128}
#: How large a sum of weights may be before the last step of Newton's method, which squares what it has beyond one.
TOLERANCES = {torch.float32: 2.0**-11, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-6}
SHORT_ROWS = 256  # keys of a query whose scores stay in registers, in half precision, up to a width of 64
MOST_HEADS = 65535  # of all examples together: the second axis of a grid of programs


class Tiles(NamedTuple):
    """How many queries and keys are in a tile; the warps of the kernels: forward, of queries and a bias, of keys; and
    whether all scores of a tile of queries fit in registers."""

    queries: int
    keys: int
    forward: int
    of_queries: int
    of_keys: int
    short: bool = False


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


def tiles_for(dtype: torch.dtype, width: int, keys: int) -> Tiles:
    """The tiles that spill no register. `width`: of queries or values, the larger one.

    >>> tiles_for(torch.bfloat16, 64, 4096).queries, tiles_for(torch.bfloat16, 64, 197).queries
    (64, 16)
    """
    hip = bool(torch.version.hip)
    if dtype == torch.float32:
        return Tiles(16, 32, 4, 4, 8)  # with more queries, products of float32 spill on sm_80; so do all short rows
    if keys <= SHORT_ROWS and width <= 64:
        # With 32 queries, or wider ones, the scores of 256 keys spill; with 8 warps of 64 lanes a learned alpha does.
        return Tiles(16, 32, 4 if hip else 8, 4, 4, short=True)
    if width > 64:
        return Tiles(32, 32, 8, 8, 4 if hip else 8)  # with 64 queries a learned alpha spills, on gfx942 and sm_80
    return Tiles(64, 32, 8, 8, 8)  # with 64 keys the gradient of the keys spills on sm_80


def attend_forward(q: Tensor, k: Tensor, v: Tensor, case: Case) -> SparseResult:
    """The context of queries (B, H, Lq, d), keys (B, H, Lk, d) and values (B, H, Lk, dv), in any layout."""
    from regard.gpu import _attention_forward_kernels

    batch, heads, queries, _ = q.shape
    keys, width = k.shape[-2], v.shape[-1]
    size = tiles_for(q.dtype, max(q.shape[-1], width), keys)
    grid = -(-queries // size.queries), batch * heads
    tiles = -(-keys // size.keys)
    context = q.new_empty(batch, heads, queries, width)
    threshold = q.new_empty(2, batch, heads, queries, dtype=torch.float32)
    share = q.new_empty(batch, heads, queries, dtype=torch.float32)
    active = q.new_empty(batch, heads, grid[0], tiles, dtype=torch.uint8)
    tensors, options = _arguments(q, k, v, case, size)
    result = SparseResult(context, threshold, share, active)
    with device_of(q):
        if size.short:
            tuned(_attention_forward_kernels.attend_short_rows)[grid](
                *tensors,
                *result,
                *_sizes(q, k, case),
                **options,
                ALL=max(size.keys, 1 << (keys - 1).bit_length()),
                num_warps=size.forward,
            )
            return result
        near = q.new_empty(active.shape, dtype=torch.float32)
        tuned(_attention_forward_kernels.attend_tile)[grid](
            *tensors,
            *result[:3],
            near,
            active,
            *_sizes(q, k, case),
            **options,
            TOLERANCE=TOLERANCES[q.dtype],
            num_warps=size.forward,
            num_stages=2,
        )
    return result


class SparseGradients(NamedTuple):
    """The gradients in q, k and v; for each query in alpha (B, H, Lq); in the bias. What is not asked for is empty."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor
    bias: Tensor


def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    case: Case,
    grad: Tensor,
    result: SparseResult,
    learned: bool = False,
    biased: bool = False,
) -> SparseGradients:
    """The gradients. `learned`: also in the alphas. `biased`: also in the bias."""
    from regard.gpu import _attention_backward_kernels

    batch, heads, queries, _ = q.shape
    size = tiles_for(q.dtype, max(q.shape[-1], v.shape[-1]), k.shape[-2])
    tiles_q, tiles_k = -(-queries // size.queries), -(-k.shape[-2] // size.keys)
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    centre = torch.empty_like(result.share)
    slopes = torch.empty_like(result.share) if learned else result.share.new_empty(0)
    tensors, options = _arguments(q, k, v, case, size)
    solved = grad.contiguous(), *result[1:]
    sizes = _sizes(q, k, case)
    with device_of(q):
        tuned(_attention_backward_kernels.attend_backward_queries)[(tiles_q, batch * heads)](
            *tensors,
            *solved,
            dq,
            centre,
            slopes,
            *sizes,
            **options,
            LEARNED=learned,
            num_warps=size.of_queries,
            num_stages=2,
        )
        tuned(_attention_backward_kernels.attend_backward_keys)[(tiles_k, batch * heads)](
            *tensors,
            *solved,
            centre,
            dk,
            dv,
            *sizes,
            tiles_q,
            **options,
            num_warps=size.of_keys,
            num_stages=1,
        )
        if not biased or case.bias is None:
            return SparseGradients(dq, dk, dv, slopes, q.new_empty(0))
        grid, own, shape = _bias_grid(case.bias, batch, heads, tiles_q, tiles_k)
        pairs = all(n > 1 for n in case.bias.shape[-2:])
        # That of pairs is as large as the bias itself. The others are sums, which are rounded once, in the end.
        dbias = torch.empty(shape, dtype=case.bias.dtype if pairs else torch.float32, device=q.device)
        tuned(_attention_backward_kernels.attend_backward_bias)[grid](
            *tensors,
            *solved,
            centre,
            dbias,
            *sizes,
            tiles_q,
            tiles_k,
            batch * heads,
            own,
            batch // shape[0],
            heads // shape[1],
            **options,
            OF_QUERIES=shape[2] > 1,
            OF_KEYS=shape[3] > 1,
            num_warps=size.of_queries,
            num_stages=1,
        )
    return SparseGradients(dq, dk, dv, slopes, dbias.sum_to_size(case.bias.shape).to(case.bias.dtype))


def share_of_nothing(q: Tensor) -> Tensor:
    """The gradient of a bias that nobody asked for."""
    return q.new_empty(0)


def _bias_grid(
    bias: Tensor, batch: int, heads: int, tiles_q: int, tiles_k: int
) -> tuple[tuple[int, int], int, tuple[int, int, int, int]]:
    """The programs of the gradient of a bias, how many heads of it are written for an example, and the shape of that.

    A bias of pairs is summed over the heads and examples that share it by one program, so that nothing larger than it
    is in memory. Those of queries alone or of keys alone are written for each head, and summed afterwards.
    """
    b, h, queries, keys = bias.shape
    if queries == 1 or keys == 1:
        b, h = batch, heads
    programs = (tiles_q if queries > 1 else 1) * (tiles_k if keys > 1 else 1)
    return (programs, b * h), h, (b, h, queries, keys)


def _precision(case: Case, width: int) -> str:
    """Of products of float32. AMD's compiler has exact ones alone; three of TF32 spill up to a width of 32."""
    asked = case.precision or PRECISIONS[torch.get_float32_matmul_precision()]
    return "ieee" if torch.version.hip or (asked == "tf32x3" and width <= 32) else asked


def _sizes(q: Tensor, k: Tensor, case: Case) -> tuple[Any, ...]:
    return q.shape[1], q.shape[-2], k.shape[-2], case.scale, case.number - 1, case.diagonal


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, case: Case, size: Tiles
) -> tuple[tuple[tuple[Tensor, ...], tuple[tuple[int, ...], ...]], dict[str, Any]]:
    """The tensors that every kernel reads and their strides; and its constants."""
    batch, heads, queries, width = q.shape
    pairs = batch, heads, queries, k.shape[-2]
    mask = None if case.mask is None else case.mask.expand(pairs).view(torch.uint8)
    bias = None if case.bias is None else case.bias.expand(pairs)
    alphas = None if case.alphas is None else case.alphas.expand(batch, heads)
    others = mask, bias, alphas
    strides = tuple(x.stride() for x in (q, k, v)) + tuple((0,) * 4 if x is None else x.stride() for x in others)
    # Without this, ptxas spills some bytes in order to run one more program beside others.
    options: dict[str, Any] = {} if torch.version.hip else {"maxnreg": 255}
    options |= {
        "D": width,
        "DV": v.shape[-1],
        "KIND": 3 if alphas is not None else kind_of(case.number),
        "HAS_MASK": mask is not None,
        "HAS_BIAS": bias is not None,
        "HAS_ALPHA": alphas is not None,
        "PRECISION": _precision(case, max(width, v.shape[-1])),
        "BM": size.queries,
        "BN": size.keys,
        "BD": max(16, 1 << (width - 1).bit_length()),
        "BV": max(16, 1 << (v.shape[-1] - 1).bit_length()),
    }
    return ((q, k, v, *(q if x is None else x for x in others)), strides), options
