"""Softmax of all keys, without masks and gradients: blocks of scores and weights that stay in the processor's cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._torch import without_autocast
from regard.affinity import Factored
from regard.attention import query_blocks
from regard.attention.call import Call
from regard.attention.place import Place
from regard.maps.entmax import Softmax

_RANGE = {torch.float32: 85.0, torch.float64: 700.0}  # scores that differ by less leave no weight at zero


class SoftmaxBlock(NamedTuple):
    """A block of one head; its memory is used again for the next one.

    `scores`, `weights`: (rows, keys); scores up to a constant per row.
    `positive`: whether no weight can be zero.
    """

    place: Place
    scores: Tensor
    weights: Tensor
    positive: bool


def has_softmax_blocks(call: Call) -> bool:
    """Whether the weights of a call are the softmax of products of queries and keys, all of them, and no more."""
    plain = call.unmasked and call.diagonal is None and not torch.is_grad_enabled() and not call.exporting
    return plain and isinstance(call.map, Softmax) and isinstance(call.affinity, Factored)


def softmax_blocks(call: Call) -> Iterator[SoftmaxBlock]:
    """The blocks of a call that is `finite`, one head after the other."""
    affinity: Any = call.affinity
    with without_autocast(call.q):
        first, second = (x.expand(*call.batch, *x.shape[-2:]) for x in affinity.factors(call.q, call.k))
    # Half of what `attend` takes: scores and weights.
    rows = max(1, min(call.queries, query_blocks.budget(call.q.device) // 2 // call.keys))
    scores, weights = (first.new_empty(rows, call.keys) for _ in range(2))
    for part in itertools.product(*(range(n) for n in call.batch)):
        # Of a model they are often views with all heads between two rows, which every block would gather again.
        q, k = first[part].contiguous(), second[part].contiguous().mT
        longest = q.square().sum(-1).amax().sqrt() * k.square().sum(-2).amax().sqrt()  # |s| is at most this
        positive = bool(2 * longest < _RANGE[q.dtype])
        for start in range(0, call.queries, rows):
            at = slice(start, min(start + rows, call.queries))
            s, p = scores[: at.stop - start], weights[: at.stop - start]
            torch.mm(q[at], k, out=s)  # with `out`, autocast has no part in it
            torch.softmax(s, -1, out=p)
            yield SoftmaxBlock(Place(part, at, call.keys), s, p, positive)
