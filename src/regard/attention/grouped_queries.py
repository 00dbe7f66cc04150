"""Grouped queries: several heads of queries share one head of keys and values, which is not copied for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.arguments import has_groups
from regard.attention.call import Call
from regard.attention.masks import same_for_all_heads, same_for_all_queries
from regard.attention.parameters import Parameters


@dataclass(frozen=True)
class GroupedQueries:
    """A call with grouped queries as calls with equal heads; head h of q belongs to head h // `size` of k.

    Where all queries are treated alike, those of a group are concatenated to more queries of one head. Otherwise there
    is one part per place in a group. Keys are copied only where affinity or map may have parameters per head.

    `parts`: the calls.
    `size`: heads of queries per head of keys; 1 where keys were copied.
    `how`: the addition to the text of a `Plan`.
    """

    parts: list[Call]
    size: int
    how: str

    @classmethod
    def of(cls, call: Call) -> GroupedQueries | None:
        """None if there is one head of keys for each of the queries."""
        q, k, v, mask, bias = call.q, call.k, call.v, call.mask, call.bias
        if not has_groups(q, k, v) or q.shape[-3] == k.shape[-3]:
            return None
        heads, size = k.shape[-3], q.shape[-3] // k.shape[-3]
        if not _alike_for_all_heads(call.affinity) or not _alike_for_all_heads(call.map):
            k, v = k.repeat_interleave(size, -3), v.repeat_interleave(size, -3)
            copies = f"with {size} copies of keys and values for affinity and map"
            return cls([call.with_tensors(q, k, v, mask, bias)], 1, copies)
        alike = call.diagonal is None and not call.couples_rows
        if alike and all(same_for_all_queries(x) and same_for_all_heads(x) for x in (mask, bias)):
            q = q.unflatten(-3, (heads, size)).flatten(-3, -2)
            return cls([call.with_tensors(q, k, v, mask, bias)], size, f"the {size} heads of a group as one")
        places = range(size)
        parts = [
            call.with_tensors(_pick(q, size, at), k, v, _pick(mask, size, at), _pick(bias, size, at)) for at in places
        ]
        return cls(parts, size, f"{size} times, once for each head of a group")

    def joined(self, results: list[Tensor]) -> Tensor:
        """Contexts or weights of all heads from those of the parts."""
        if len(results) > 1:
            return torch.stack(results, -3).flatten(-4, -3)
        return results[0] if self.size == 1 else results[0].unflatten(-2, (self.size, -1)).flatten(-4, -3)


def _alike_for_all_heads(thing: Any) -> bool:
    """Whether an affinity or a map is known to have no parameters per head."""
    parameters = Parameters.of(thing)
    return not parameters.tensors and parameters.complete


def _pick(x: Any, size: int, at: int) -> Any:
    """The heads at place `at` of every group of `size`."""
    return x if same_for_all_heads(x) else x.unflatten(-3, (-1, size))[..., at, :, :]
