"""Weights that are never all in memory: computed in blocks of queries, for whatever is asked of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from regard import _check
from regard._repr import shown
from regard._torch import without_autocast
from regard.affinity import Affinity, Dot
from regard.attention.arguments import Causal, Map, has_groups
from regard.attention.call import Call
from regard.attention.choice import context_of
from regard.attention.parameters import Parameters
from regard.attention.place import Place
from regard.attention.query_blocks import QueryBlocks, rows_in_budget
from regard.attention.sink import map_with_sink, with_sink
from regard.attention.softmax_blocks import SoftmaxBlock, has_softmax_blocks, softmax_blocks
from regard.attention.summaries_kernel import suits_kernel, summaries_by_kernel
from regard.attention.weights import weights_of
from regard.maps.entmax import softmax
from regard.maps.spelling import as_map

_FEW_ROWS = 64  # a block of all heads with fewer queries is a slow product: then one head at a time


@final
class LazyWeights:
    """The weights p of one attention (docs/math.md, 4.1), (..., Lq, Lk), in memory one block of queries at a time.

    Arguments as in `attend`, without values. With a `sink` they are the weights of the keys: what they lack of their
    total is the sink's. With `enable_gqa` each head of keys is copied for the heads that share
    it. Maps whose rows depend on each other (Sinkhorn) need all weights at once. Half precision is computed in float32,
    and so are results. Differentiable in all tensors: a block is computed again for the gradient.

    >>> p = LazyWeights(torch.zeros(3, 4), torch.zeros(3, 4), causal=True)
    >>> p.shape
    torch.Size([3, 3])
    >>> p.rows([1, -1])
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> p.times(torch.eye(3)[:, :1]), p.transposed_times(torch.ones(1, 3))
    (tensor([[1.0000],
            [0.5000],
            [0.3333]]), tensor([[1.8333, 0.8333, 0.3333]]))
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        affinity: Affinity = Dot(),  # noqa: B008  (immutable)
        map: Map = softmax,
        mask: Tensor | None = None,
        *,
        causal: Causal = False,
        bias: Tensor | None = None,
        sink: float | Tensor | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Describe the attention: arguments as in `attend`."""
        call = Call.of(q, k, None, affinity, map, mask, causal=causal, bias=bias, enable_gqa=enable_gqa)
        if enable_gqa and has_groups(call.q, call.k, None) and call.q.shape[-3] != call.k.shape[-3]:
            k = call.k.repeat_interleave(call.q.shape[-3] // call.k.shape[-3], -3)
            call = call.with_tensors(call.q, k, k[..., :0], call.mask, call.bias)
        self._call = with_sink(call, sink)
        self._sinks = 0 if sink is None else 1  # keys in front of those of the caller

    @property
    def shape(self) -> torch.Size:
        """(..., Lq, Lk)."""
        return torch.Size((*self._call.batch, self._call.queries, self._call.keys - self._sinks))

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of all that is computed from them: float32 for half precision."""
        dtype = self._call.promoted().q.dtype
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    @property
    def device(self) -> torch.device:
        """Of the queries."""
        return self._call.q.device

    @property
    def attention(self) -> tuple[Affinity, Map]:
        """The affinity and the map."""
        return self._call.affinity, self._call.map

    def with_map(self, map: Map) -> LazyWeights:
        """The weights that another map makes of the same scores."""
        value = as_map(map)
        return self._of(replace(self._call, map=value if not self._sinks else map_with_sink(value)))

    def detached(self) -> LazyWeights:
        """The same weights without a gradient in queries and keys, which are kept alive and not copied."""
        return self._of(replace(self._call, q=self._call.q.detach(), k=self._call.k.detach(), v=self._call.v.detach()))

    def rows(self, at: Sequence[int] | Tensor) -> Tensor:
        """The weights of some queries whole, (..., R, Lk). `at`: their R places; -1 is the last query."""
        places = places_of(at, self._call.queries).to(self.device)
        if self._call.couples_rows:
            return self._whole()[..., places, :]
        call = self._call.finite()
        q, mask, bias = call.q[..., places, :], _pick_rows(call.mask, places), _pick_rows(call.bias, places)
        if call.diagonal is not None:
            seen = torch.arange(call.keys, device=self.device) <= places[:, None] + call.diagonal
            mask = seen if mask is None else mask & seen
        with without_autocast(q):
            return weights_of(q, call.k, call.affinity, call.map, mask, bias)[..., self._sinks :]

    def times(self, v: Tensor) -> Tensor:
        """p v, the context (..., Lq, dv) of values (..., Lk, dv), by the algorithms of `attend` (4.1)."""
        call = self._call
        v = pad(v.to(call.q.dtype), (0, 0, self._sinks, 0))
        checked = Call.of(call.q, call.k, v, call.affinity, call.map, call.mask, bias=call.bias)
        return context_of(replace(checked, diagonal=call.diagonal))

    def transposed_times(self, r: Tensor) -> Tensor:
        """r p, (..., R, Lk), for coefficients r (..., R, Lq) of the queries: with ones, the mass of each key (4.11)."""
        _check.floating("r", r, min_dims=2)
        _check.last_axis("r", r, self._call.queries, "one for each query")
        _check.finite("r", r)
        batch = torch.broadcast_shapes(self._call.batch, r.shape[:-2])
        if batch != self._call.batch:
            expected = f"leading dimensions that broadcast to {tuple(self._call.batch)}"
            _check.complain("r", f"shape {tuple(r.shape)}", expected, "Add axes of size 1 with unsqueeze.")
        r = r.to(self.dtype).expand(*batch, *r.shape[-2:])
        total = r.new_zeros(*batch, r.shape[-2], self.shape[-1])

        def weighted(p: Tensor, place: Place) -> tuple[Tensor, ...]:
            return (r[place.part][..., place.queries] @ p,)

        for place, (mass,) in self.blocks(weighted):
            total[place.part][..., : place.keys].add_(mass)
        return total

    def blocks(
        self, of_block: Callable[[Tensor, Place], tuple[Tensor, ...]]
    ) -> Iterator[tuple[Place, tuple[Tensor, ...]]]:
        """Every block's place and what `of_block` makes of its weights (..., rows, keys), which are then forgotten.

        With gradients on, a block is computed again in the backward pass.
        """
        call = self._call.finite()
        if 0 in (*call.batch, call.queries):
            return
        for part, piece in _pieces(call):
            # Half of what `attend` takes: statistics of a block need its memory several times over.
            size = call.queries if call.couples_rows else max(1, rows_in_budget(piece, piece.numbers) // 2)
            cut = QueryBlocks.of(piece, size)
            for at in cut:
                place = Place(part, at, cut.seen(at) - self._sinks)
                yield place, _computed(piece, cut, place, self._sinks, of_block)

    def softmax_blocks(self) -> Iterator[SoftmaxBlock] | None:
        """Every block with its scores, where that is faster: softmax of all keys, without a gradient; else None."""
        call = self._call
        if self._sinks or 0 in (*call.batch, call.queries) or not has_softmax_blocks(call):
            return None
        return softmax_blocks(call.finite())

    def summaries_by_kernel(self, names: tuple[str, ...], top: int, regions: Tensor | None) -> dict[str, Tensor] | None:
        """The wanted summaries by the native kernel, arguments as there; None where it does not suit."""
        if self._sinks:
            return None
        call = self._call.finite()
        return summaries_by_kernel(call, names, top, regions) if suits_kernel(call, top) else None

    def _whole(self) -> Tensor:
        """All weights at once."""
        blocks = [p for _, (p,) in self.blocks(lambda p, place: (p,))]
        return blocks[0] if blocks else torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def _of(self, call: Call) -> LazyWeights:
        """The same with another call, of as many keys."""
        made = LazyWeights.__new__(LazyWeights)
        made._call, made._sinks = call, self._sinks
        return made

    def __repr__(self) -> str:
        return shown(self, {"shape": tuple(self.shape), "affinity": self._call.affinity, "map": self._call.map})


def _computed(
    call: Call, cut: QueryBlocks, place: Place, sinks: int, of_block: Callable[[Tensor, Place], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    q, k, _, mask, bias = cut.block(call.q, call.k, call.v, call.bias, place.queries)

    def compute() -> tuple[Tensor, ...]:
        with without_autocast(q):
            p = weights_of(q, k, call.affinity, call.map, mask, bias)
            return of_block(p[..., sinks:] if sinks else p, place)

    if not torch.is_grad_enabled():
        return compute()
    result: tuple[Tensor, ...] = checkpoint(compute, use_reentrant=False)
    return result


def _pieces(call: Call) -> Iterator[tuple[tuple[int, ...], Call]]:
    """The call whole, or one call for each index of the leading dimensions, where a block would have too few queries.

    A call can be cut only if neither affinity nor map may have parameters per head.
    """
    parameters = Parameters.of(call.affinity, call.map)
    whole = not parameters.complete or bool(parameters.tensors) or call.couples_rows
    if whole or math.prod(call.batch) == 1 or rows_in_budget(call, call.numbers) >= min(_FEW_ROWS, call.queries):
        yield (), call
        return
    q, k, v = (x.expand(*call.batch, *x.shape[-2:]) for x in (call.q, call.k, call.v))
    for part in itertools.product(*(range(n) for n in call.batch)):
        mask, bias = (_part_of(x, call.batch, part) for x in (call.mask, call.bias))
        yield part, call.with_tensors(q[part], k[part], v[part], mask, bias)


def _part_of(x: Tensor | None, batch: torch.Size, part: tuple[int, ...]) -> Tensor | None:
    """What a mask or a bias says about one index of the leading dimensions; one of two axes is the same for all."""
    return x if x is None or x.dim() <= 2 else x.expand(*batch, *x.shape[-2:])[part]


def _pick_rows(x: Tensor | None, places: Tensor) -> Tensor | None:
    """The rows of a mask or a bias that broadcasts to all pairs."""
    return x if x is None or x.dim() < 2 or x.shape[-2] == 1 else x[..., places, :]


def places_of(at: Sequence[int] | Tensor, queries: int) -> Tensor:
    """Places of queries as numbers from 0; an error if one does not exist."""
    places = at.tolist() if isinstance(at, Tensor) else at
    if not isinstance(places, Sequence) or any(isinstance(i, bool) or not isinstance(i, int) for i in places):
        _check.complain("at", repr(at), "a list of whole numbers", "For example [0], or [-1] for the last query.")
    if any(not -queries <= i < queries for i in places):
        got = repr(list(places))
        _check.complain("at", got, f"places of the {queries} queries", "They count from 0; -1 is the last.")
    return torch.tensor([i % queries for i in places], dtype=torch.int64)
