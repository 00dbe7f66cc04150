"""An attention sink: one more key, with a score of its own and no value, which takes weight from the others (4.8).

A call with a sink is a call with one more key in front, so that every algorithm computes it as it is: a query carries
the score of its sink as one more feature, which the sink's key alone reads. In front, because a causal query that sees
the first keys then sees the sink too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import _check
from regard.affinity import Affinity, Factored, Shifted
from regard.attention.arguments import Map
from regard.attention.call import Call
from regard.maps._value import MapValue


def with_sink(call: Call, sink: float | Tensor | None) -> Call:
    """The call with one more key in front; None leaves it as it is.

    `sink`: a number, or a tensor that broadcasts to (..., Lq, 1). The computation is in the wider dtype of it and q.
    """
    if sink is None:
        return call
    sink = _as_tensor(sink, call)
    dtype = torch.promote_types(call.q.dtype, sink.dtype)
    q, k, v, sink = (x.to(dtype) for x in (call.q, call.k, call.v, sink))
    leading = torch.broadcast_shapes(q.shape[:-2], sink.shape[:-2])
    q = torch.cat([q.expand(*leading, *q.shape[-2:]), sink.expand(*leading, q.shape[-2], 1)], -1)
    return replace(
        call,
        q=q,
        k=_in_front(k),
        v=torch.cat([torch.zeros_like(v[..., :1, :]), v], -2),
        affinity=_affinity(call.affinity),
        map=map_with_sink(call.map),
        mask=_one_more(call.mask, call.keys, True),
        bias=_one_more(call.bias, call.keys, 0.0),
        diagonal=None if call.diagonal is None else call.diagonal + 1,
    )


def map_with_sink(map: Map) -> Map:
    """A map for rows with one more score in front; a callable that is none of regard's is taken as it is."""
    return map.with_sink() if isinstance(map, MapValue) else map


def _as_tensor(sink: float | Tensor, call: Call) -> Tensor:
    """The scores of a sink, with two axes at least."""
    if not isinstance(sink, Tensor):
        number = _check.number("sink", sink, remedy="Leave it out for attention without a sink.")
        return call.q.new_full((1, 1), number)
    _check.floating("sink", sink)
    _check.broadcasts("sink", sink, torch.Size((*call.batch, call.queries, 1)), "one score per query:")
    _check.finite("sink", sink)
    return sink[(None,) * max(0, 2 - sink.dim())]


def _in_front(k: Tensor) -> Tensor:
    """Keys (..., Lk, d) as [k, 0], after that of the sink, [0, 1]: (..., 1 + Lk, d + 1)."""
    width = k.shape[-1]
    sink = pad(k.new_ones(1, 1), (width, 0)).expand(*k.shape[:-2], 1, width + 1)
    return torch.cat([sink, pad(k, (0, 1))], -2)


def _one_more(x: Tensor | None, keys: int, value: float) -> Tensor | None:
    """A mask or a bias that broadcasts to all pairs, with a column for the sink."""
    if x is None:
        return None
    x = x if x.dim() > 0 else x[None]
    return pad(x.expand(*x.shape[:-1], keys), (1, 0), value=value)


def _affinity(affinity: Affinity) -> Affinity:
    """One that knows of the sink; by factors, where they determine the scores."""
    if isinstance(affinity, Factored) and (affinity.exact or isinstance(affinity, Shifted)):
        return SinkFactors(affinity)
    return SinkScores(affinity)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SinkScores(Affinity):
    """The scores of `of`, and that of the sink in front, for the queries and keys of `with_sink`."""

    of: Affinity

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., Lq, 1 + Lk)."""
        return _scores(self.of, q, k)

    def width(self, q: Tensor, k: Tensor) -> int:
        """That of `of`, and one for the copy."""
        return self.of.width(q[..., :-1], k[..., 1:, :-1]) + 1


@final
@dataclass(frozen=True, eq=False, repr=False)
class SinkFactors(Factored):
    """The same where `of` is factored: [q, b], and [0, 1] for the sink, [k, 0] for the other keys."""

    of: Factored

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., Lq, 1 + Lk)."""
        return _scores(self.of, q, k)

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Those of `of`; what its products omit is omitted from the score of the sink too."""
        q, sink, k = q[..., :-1], q[..., -1:], k[..., 1:, :-1]
        if isinstance(self.of, Shifted):
            sink = sink - self.of.omitted(q, k)
        first, second = self.of.factors(q, k)
        leading = torch.broadcast_shapes(first.shape[:-2], sink.shape[:-2])
        first = first.expand(*leading, *first.shape[-2:])
        return torch.cat([first, sink.expand(*first.shape[:-1], 1)], -1), _in_front(second)


def _scores(affinity: Affinity, q: Tensor, k: Tensor) -> Tensor:
    s = affinity.scores(q[..., :-1], k[..., 1:, :-1])
    return torch.cat([q[..., -1:].expand(*s.shape[:-1], 1), s], -1)
