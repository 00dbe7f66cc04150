"""Sparse attention that keeps only the weights that are not zero (docs/math.md, 4.7).

Scores are formed in blocks that stay in the cache; of each row only its support is kept, a few keys with their
weights. The context, and all of the backward pass, then cost as much as there are such keys, not as there are pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from regard import _check, native
from regard._algorithms import batch_of
from regard._blocks import Cut, Rows, checkpointed
from regard.maps.entmax import entmax_order

SCORES = 1 << 20  # numbers in a block of scores: they stay in the cache
ROOM = 32  # weights kept a row, at first; as many again whenever a row needs more
DENSE = 4  # a row with more than a quarter of the keys is no longer sparse
SHORTEST = 1 << 18  # pairs of one head: below this, forming all of them at once is as fast


class TooDenseError(Exception):
    """A row keeps so many keys that the dense algorithm is better."""


def order(map: Any) -> float | None:
    """The alpha of a map that the kernel knows, sparsemax or entmax 1.5; None for any other."""
    alpha = entmax_order(map)
    return alpha if alpha in (1.5, 2.0) else None


def suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel can take these: float32 on a CPU, long enough to pay, and not inside a transform."""
    pairs = q.shape[-2] * k.shape[-2]
    return pairs >= SHORTEST and q.dtype == torch.float32 and _check.readable(q) and native.usable(q, k, v)


def attend_sparse(q: Tensor, k: Tensor, v: Tensor, cut: Cut, alpha: float, rows: Rows) -> Tensor:
    """Context of queries that are already factors of the scores; `rows` is the dense program for a block of them.

    Raises TooDenseError when the weights are not sparse enough.
    """
    batch = batch_of(q, k, v)
    q, k, v = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    mask = cut.mask
    if mask is not None and mask.dim() > 2:
        mask = mask.expand(*batch, *mask.shape[-2:]).reshape(-1, *mask.shape[-2:])
    c: Tensor = _Sparse.apply(q, k, v, replace(cut, mask=mask), alpha, rows)
    return c.reshape(*batch, *c.shape[-2:])


class _Support:
    """Places and weights of the keys that each query of each head looks at, with room for so many."""

    def __init__(self, heads: int, queries: int) -> None:
        self.room = ROOM
        self.place = torch.empty(heads, queries, ROOM, dtype=torch.int32)
        self.weight = torch.empty(heads, queries, ROOM)
        self.count = torch.zeros(heads, queries, dtype=torch.int32)

    def widen(self, keys: int) -> None:
        self.room *= 2
        if self.room * DENSE > keys:
            raise TooDenseError
        self.place, self.weight = (
            torch.cat([x, torch.empty_like(x)], -1).contiguous() for x in (self.place, self.weight)
        )


class _Sparse(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cut: Cut, alpha: float, rows: Rows) -> Tensor:
        heads, queries, keys = len(q), q.shape[-2], k.shape[-2]
        kept, v = _Support(heads, queries), v.contiguous()
        out = torch.empty(heads, queries, v.shape[-1])
        size = max(1, SCORES // keys)
        memory = torch.empty(min(size, queries), keys)
        for h in range(heads):
            turned = k[h].T
            for i in range(0, queries, size):
                at = slice(i, min(i + size, queries))
                s = torch.mm(q[h, at], turned, out=memory[: at.stop - i])
                _hide(s, cut, h, at)
                _solve(s, v[h], out[h, at], kept, h, at, alpha)
        ctx.save_for_backward(q, k, v)
        ctx.kept, ctx.cut, ctx.alpha, ctx.rows = kept, cut, alpha, rows
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative will be asked for: the dense program has it
            c = torch.cat(checkpointed(ctx.rows, ctx.cut, q, k, v, None, ()), -2)
            return *torch.autograd.grad(c, (q, k, v), grads[0], create_graph=True), None, None, None
        q, k, grad = q.contiguous(), k.contiguous(), grads[0].contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        kept: _Support = ctx.kept
        slope = torch.empty_like(kept.weight[0])
        sizes = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1], kept.room, ctx.alpha
        for h in range(len(q)):
            given: Sequence[Tensor] = (q[h], k[h], v[h], grad[h], kept.place[h], kept.weight[h], kept.count[h])
            native.call("regard_attend_backward", *given, slope, dq[h], dk[h], dv[h], *sizes)
        return dq, dk, dv, None, None, None


def _hide(s: Tensor, cut: Cut, head: int, at: slice) -> None:
    """Put -inf where a key takes no part."""
    if cut.mask is not None:
        mask = cut.mask[head] if cut.mask.dim() > 2 else cut.mask
        mask = mask[at] if mask.dim() > 1 and mask.shape[0] > 1 else mask
        s.masked_fill_(~mask, -torch.inf)
    if cut.diagonal is not None:
        last = torch.arange(at.start, at.stop).unsqueeze(-1) + cut.diagonal
        s.masked_fill_(torch.arange(cut.keys) > last, -torch.inf)


def _solve(s: Tensor, v: Tensor, out: Tensor, kept: _Support, head: int, at: slice, alpha: float) -> None:
    """Supports and contexts of a block of rows."""
    while True:
        given = kept.place[head, at], kept.weight[head, at], kept.count[head, at]
        sizes = s.shape[0], s.shape[1], v.shape[-1], kept.room, alpha
        failed = native.call("regard_attend_forward", s, v, out, *given, *sizes)
        if failed & 1:
            _check.scores(s)
            raise TooDenseError  # values are not checked: the dense program gives NaN where it should
        if not failed:
            return
        kept.widen(s.shape[1])
