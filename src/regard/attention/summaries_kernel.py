"""Summaries of softmax attention by the native kernel: scores of a few queries at a time stay in the cache."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from regard import native
from regard._torch import forward_mode, without_autocast
from regard.affinity import Factored
from regard.attention import query_blocks
from regard.attention.call import Call
from regard.maps.entmax import Softmax

_LARGEST = 1e30  # of scores: their differences are finite
_MOST = 64  # largest weights of a query: more would be inserted one by one for too long


def suits_kernel(call: Call, top: int) -> bool:
    """Whether the kernel can summarize a call: softmax of inner products in float32, causal or not, no gradient."""
    plain = call.unmasked and not torch.is_grad_enabled() and not forward_mode() and not call.exporting
    if not plain or top > _MOST or 0 in (*call.batch, call.queries, call.keys):
        return False
    known = isinstance(call.map, Softmax) and isinstance(call.affinity, Factored)
    return known and call.q.dtype == call.k.dtype == torch.float32 and native.reachable(call.q, call.k)


def summaries_by_kernel(
    call: Call, names: tuple[str, ...], top: int, regions: Tensor | None
) -> dict[str, Tensor] | None:
    """The wanted summaries of a call that suits; None if its scores may be too large.

    `call`: `finite`.
    `names`: those of the wanted summaries.
    `top`: how many of the largest weights of each query.
    `regions`: (..., M, Lk) with the leading dimensions of the weights, or None.
    """
    affinity: Any = call.affinity
    with without_autocast(call.q):
        q, k = (x.expand(*call.batch, *x.shape[-2:]) for x in affinity.factors(call.q, call.k))
    if _longest(q) * _longest(k) > _LARGEST:
        return None
    heads, queries, keys, width = math.prod(call.batch), call.queries, call.keys, q.shape[-1]
    masses = 0 if regions is None else regions.shape[-2]
    diagonal = keys if call.diagonal is None else call.diagonal
    parts = max(1, torch.get_num_threads()) if "received" in names else 0
    made = {
        "entropy": q.new_empty(heads, queries, 1),
        "support": q.new_empty(heads, queries, 1, dtype=torch.int64),
        "received": q.new_empty(heads, keys),
        "top_weights": q.new_empty(heads, queries, top),
        "top_places": q.new_empty(heads, queries, top, dtype=torch.int64),
        "regions": q.new_empty(heads, queries, masses),
    }
    # A few heads at a time: those of a model are often views, whose copies would need the memory of all.
    size = max(1, query_blocks.BUDGET // (keys * (width + parts + masses) + queries * width))
    places = list(itertools.product(*map(range, call.batch)))
    for first in range(0, heads, size):
        at = slice(first, min(first + size, heads))
        some = places[at]
        one_q, one_k = (torch.stack([x[place] for place in some]) for x in (q, k))
        shares = q.new_empty(0) if regions is None else torch.stack([regions[place] for place in some])
        received = q.new_zeros(parts, len(some), keys)
        results = {name: x[at] for name, x in made.items()} | {"received": received}
        sizes = len(some), queries, keys, width, masses, top, parts, diagonal
        native.call("regard_summarize", one_q, one_k, shares, *results.values(), *sizes)
        made["received"][at] = received.sum(0)
    return {name: made[name].reshape(*call.batch, *made[name].shape[1:]) for name in names}


def _longest(x: Tensor) -> float:
    """At least the length of the longest vector."""
    largest = native.largest(x)
    return math.sqrt(x.shape[-1]) * (float(x.abs().amax()) if largest is None else largest)
