"""Softmax by the native kernel that sparse maps have: scores in the cache, where that is faster than SDPA.

Its checks of the inputs cost nothing, because a head that is checked is in the cache when it is used; and the gradient
of a bias needs no scores in memory, which SDPA's does.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from regard import _check, native
from regard._torch import forward_mode
from regard.affinity import Dot
from regard.attention.arguments import batch_of, four_axes
from regard.attention.call import Call
from regard.attention.query_blocks import QueryBlocks, rows_in_budget
from regard.attention.sparse_function import NotFiniteError, SparseCase, sparse_context
from regard.maps.entmax import Softmax

KEYS = {"avx2": 512, "avx512": 2048}  # up to here a variant of the kernels was measured to be faster
WORK = 1 << 20  # multiplications of the scores: below them the call itself takes longer
SOFTMAX_DTYPES = torch.float32, torch.bfloat16, torch.float16
WIDTH = 16  # numbers in the widest register: widths are multiples of it


def suits_softmax(call: Call) -> bool:
    """Whether the kernel supports the call, and is worth it."""
    if torch.compiler.is_compiling():  # before any size is compared: it may be a symbol, and the result a guard
        return False
    if call.exporting or call.dropout > 0 or not isinstance(call.map, Softmax) or type(call.affinity) is not Dot:
        return False
    tensors = [call.q, call.k, call.v] if call.bias is None else [call.q, call.k, call.v, call.bias]
    return call.pairs * call.q.shape[-1] >= WORK and in_reach(*tensors)


def in_reach(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> bool:
    """Whether the kernel can read the tensors, and has registers that are wide enough to be worth it."""
    if q.shape[-1] % WIDTH or v.shape[-1] % WIDTH or not q.shape[-1] == k.shape[-1] > 0:
        return False
    if k.shape[-2] > KEYS.get(native.variant() or "", 0):
        return False
    if q.dtype not in SOFTMAX_DTYPES or q.dtype != k.dtype or q.dtype != v.dtype:
        return False
    for x in more:
        if x.dtype is not torch.float32:
            return False
    return _check.readable(q) and not forward_mode() and native.reachable(q, k, v, *more)


def softmax_context(call: Call) -> Tensor | None:
    """The context of a call that it suits; None if a number is not finite or so large that scores may not be."""
    batch = batch_of(call.q, call.k, call.v)
    q, k, v = (
        four_axes(x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:])) for x in (call.q, call.k, call.v)
    )
    case = SparseCase(batch, QueryBlocks.of(call, rows_in_budget(call, call.pairs)), 1.0, _scale(q, call.affinity))
    try:
        c = sparse_context(q, k, v, None, call.bias, case)
    except NotFiniteError:
        return None
    return c if len(batch) == 2 else c.reshape(*batch, *c.shape[-2:])


def suits_bare(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel suits (B, H, L, d) in its layout without mask, bias or diagonal, and is worth it."""
    return not torch.compiler.is_compiling() and q.numel() * k.shape[-2] >= WORK and in_reach(q, k, v)


def bare_context(q: Tensor, k: Tensor, v: Tensor, affinity: Dot) -> Tensor | None:
    """The context of tensors that `suits_bare` found to suit, with less overhead; None if a number is not finite or so
    large that scores may not be."""
    case = _bare_case(q.shape[:2], q.shape[2], k.shape[2], _scale(q, affinity))
    try:
        return sparse_context(q, k, v, None, None, case)
    except NotFiniteError:
        return None


@functools.lru_cache(maxsize=64)
def _bare_case(batch: torch.Size, queries: int, keys: int, scale: float) -> SparseCase:
    return SparseCase(batch, QueryBlocks(queries, keys, queries, None, None), 1.0, scale)


def _scale(q: Tensor, affinity: object) -> float:
    scale = affinity.scale if isinstance(affinity, Dot) else None
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale
