"""The sparse algorithm: only weights that are not zero are stored (docs/math.md, 4.7).

Scores are formed in blocks that stay in the cache; of each row only its support is stored, a few keys with their
weights. The cost of the context and of the backward pass is then proportional to the size of the supports, not to the
number of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.autograd import Function

from regard import _check, native
from regard.affinity import Dot, Factored
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.arguments import Map, batch_of
from regard.attention.call import Call
from regard.attention.checkpointing import Rows, checkpointed
from regard.attention.query_blocks import QueryBlocks, rows_in_budget
from regard.attention.weights import weights_of
from regard.maps.entmax import entmax_order

SCORES = 1 << 20  # numbers in a block of scores: they stay in the cache
ROOM = 32  # weights stored per row at first; doubled whenever a row needs more
DENSE = 4  # a row with more than a quarter of the keys is no longer sparse
SHORTEST = 1 << 18  # pairs of one head: below this, forming all of them at once is as fast


@final
class Sparse(Algorithm):
    """Sparsemax and entmax 1.5 of a factored affinity, by a kernel that stores the support of each row."""

    def suits(self, call: Call) -> bool:
        """Where the kernel supports the call; it has neither bias nor dropout."""
        return call.without_extras and _within_reach(call)

    def cost(self, call: Call) -> Plan:
        """Memory by the number of keys with weight."""
        how = "scores in the cache, of which only the keys with weight are kept"
        rows = rows_in_budget(call, call.pairs)
        return Plan("sparse", how, "O(Lq Lk d)", "O((Lq + Lk) d + keys with weight)", rows)

    def compute(self, call: Call) -> Tensor | None:
        """The kernel, head by head; None if the support of a row is so large that a dense algorithm is faster."""
        call = call.finite()
        q, k = cast(Factored, call.affinity).factors(call.q, call.k)
        batch = batch_of(q, k, call.v)  # that of the affinity's weights too
        q, k, v = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (q, k, call.v))
        mask = call.mask
        if mask is not None and mask.dim() > 2:
            mask = mask.expand(*batch, *mask.shape[-2:]).reshape(-1, *mask.shape[-2:])
        blocks = replace(QueryBlocks.of(call, rows_in_budget(call, call.pairs)), mask=mask)
        try:
            c: Tensor = _Sparse.apply(q, k, v, blocks, _order(call.map), _dense_rows(call.map))
        except _TooDenseError:
            return None
        return call.result(c.reshape(*batch, *c.shape[-2:]))

    def lacks(self, call: Call) -> str | None:
        """The bias or the dropout, which the kernel does not support."""
        if call.without_extras or not _within_reach(call):
            return None
        return f"the sparse kernel has no {'bias' if call.bias is not None else 'dropout'}"


class _TooDenseError(Exception):
    """The support of a row is so large that a dense algorithm is faster."""


def _within_reach(call: Call) -> bool:
    """Whether the kernel supports the map and the tensors: float32 on a CPU, long enough, in no transform."""
    if call.exporting or not isinstance(call.affinity, Factored) or _order(call.map) is None:
        return False
    enough = call.queries * call.keys >= SHORTEST and call.q.dtype == torch.float32
    return enough and _check.readable(call.q) and native.usable(call.q, call.k, call.v)


def _order(map: Map) -> float | None:
    """The alpha of a map that the kernel supports, sparsemax or entmax 1.5; None for any other."""
    alpha = entmax_order(map)
    return alpha if alpha in (1.5, 2.0) else None


def _dense_rows(map: Map) -> Rows:
    """The dense algorithm for a block of queries, where q and k are the factors of the scores."""

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: None) -> Tensor:
        return weights_of(q, k, Dot(1.0), map, mask) @ v

    return rows


class _Support:
    """The support of each query of each head: indices, weights and number of its keys, up to `room` of them."""

    def __init__(self, heads: int, queries: int) -> None:
        self.room = ROOM
        self.place = torch.empty(heads, queries, ROOM, dtype=torch.int32)
        self.weight = torch.empty(heads, queries, ROOM)
        self.count = torch.zeros(heads, queries, dtype=torch.int32)

    def widen(self, keys: int) -> None:
        self.room *= 2
        if self.room * DENSE > keys:
            raise _TooDenseError
        self.place, self.weight = (
            torch.cat([x, torch.empty_like(x)], -1).contiguous() for x in (self.place, self.weight)
        )


class _Sparse(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: QueryBlocks, alpha: float, rows: Rows) -> Tensor:
        heads, queries, keys = len(q), q.shape[-2], k.shape[-2]
        support, v = _Support(heads, queries), v.contiguous()
        out = torch.empty(heads, queries, v.shape[-1])
        size = max(1, SCORES // keys)
        scratch = torch.empty(min(size, queries), keys)
        for h in range(heads):
            transposed = k[h].T
            for i in range(0, queries, size):
                at = slice(i, min(i + size, queries))
                s = torch.mm(q[h, at], transposed, out=scratch[: at.stop - i])
                _mask_scores(s, blocks, h, at)
                _solve(s, v[h], out[h, at], support, h, at, alpha)
        ctx.save_for_backward(q, k, v)
        ctx.support, ctx.blocks, ctx.alpha, ctx.rows = support, blocks, alpha, rows
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the dense algorithm can be differentiated twice
            c = torch.cat(checkpointed(ctx.rows, ctx.blocks, q, k, v, None, ()), -2)
            return *torch.autograd.grad(c, (q, k, v), grads[0], create_graph=True), None, None, None
        q, k, grad = q.contiguous(), k.contiguous(), grads[0].contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        support: _Support = ctx.support
        slope = torch.empty_like(support.weight[0])
        sizes = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1], support.room, ctx.alpha
        for h in range(len(q)):
            inputs: Sequence[Tensor] = (
                q[h],
                k[h],
                v[h],
                grad[h],
                support.place[h],
                support.weight[h],
                support.count[h],
            )
            native.call("regard_attend_backward", *inputs, slope, dq[h], dk[h], dv[h], *sizes)
        return dq, dk, dv, None, None, None


def _mask_scores(s: Tensor, blocks: QueryBlocks, head: int, at: slice) -> None:
    """Set the scores of masked keys to -inf.

    `s`: scores of the queries `at` of one head.
    `blocks`: has the mask and the diagonal.
    `head`: index of the head.
    `at`: the queries.
    """
    if blocks.mask is not None:
        mask = blocks.mask[head] if blocks.mask.dim() > 2 else blocks.mask
        mask = mask[at] if mask.dim() > 1 and mask.shape[0] > 1 else mask
        s.masked_fill_(~mask, -torch.inf)
    if blocks.diagonal is not None:
        last = torch.arange(at.start, at.stop).unsqueeze(-1) + blocks.diagonal
        s.masked_fill_(torch.arange(blocks.keys) > last, -torch.inf)


def _solve(s: Tensor, v: Tensor, out: Tensor, support: _Support, head: int, at: slice, alpha: float) -> None:
    """Compute supports and contexts of a block of rows.

    `s`: their scores.
    `v`: values of the head.
    `out`: receives the contexts.
    `support`: receives the supports.
    `head`, `at`: the head and the queries.
    `alpha`: 1.5 or 2.
    """
    while True:
        rows = support.place[head, at], support.weight[head, at], support.count[head, at]
        sizes = s.shape[0], s.shape[1], v.shape[-1], support.room, alpha
        failed = native.call("regard_attend_forward", s, v, out, *rows, *sizes)
        if failed & 1:
            _check.scores(s)
            raise _TooDenseError  # values are not checked: the dense algorithm gives NaN where it should
        if not failed:
            return
        support.widen(s.shape[1])
