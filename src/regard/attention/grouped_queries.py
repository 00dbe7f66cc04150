"""Grouped queries: several heads of queries share one head of keys and values, which is not copied for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.checkpointing import Held


@dataclass(frozen=True)
class Part:
    """An attention whose queries have as many heads as its keys."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    mask: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True)
class Groups:
    """Attentions of equal heads that together are one of grouped queries; head h of q belongs to head h // `size` of k.

    Where all queries are treated alike, those of a group lie behind each other, as more queries of one head. Otherwise
    there is one part for each place in a group. Only what may hold numbers for each head gets copies of the keys.
    """

    parts: list[Part]
    size: int
    how: str

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        mask: Tensor | None,
        bias: Tensor | None,
        diagonal: int | None,
        affinity: Any,
        map: Any,
    ) -> Groups | None:
        """None if there is one head of keys for each of the queries."""
        if not same_groups(q, k, v) or q.shape[-3] == k.shape[-3]:
            return None
        heads, size = k.shape[-3], q.shape[-3] // k.shape[-3]
        held = Held.by(affinity)
        if held.tensors or not held.known or not _alike_for_all_heads(map):
            k, v = k.repeat_interleave(size, -3), None if v is None else v.repeat_interleave(size, -3)
            return cls([Part(q, k, v, mask, bias)], 1, f"with {size} copies of keys and values for affinity and map")
        alike = diagonal is None and not couples_rows(map)
        if alike and all(same_for_all_queries(x) and _same_for_all_heads(x) for x in (mask, bias)):
            q = q.unflatten(-3, (heads, size)).flatten(-3, -2)
            return cls([Part(q, k, v, mask, bias)], size, f"the {size} heads of a group as one")
        parts = [Part(_pick(q, size, at), k, v, _pick(mask, size, at), _pick(bias, size, at)) for at in range(size)]
        return cls(parts, size, f"{size} times, once for each head of a group")

    def joined(self, made: list[Tensor]) -> Tensor:
        """Contexts or weights of all heads from those of the parts."""
        if len(made) > 1:
            return torch.stack(made, -3).flatten(-4, -3)
        return made[0] if self.size == 1 else made[0].unflatten(-2, (self.size, -1)).flatten(-4, -3)


def same_groups(q: Tensor, k: Tensor, v: Tensor | None) -> bool:
    """Whether the heads of the queries are a multiple of those of keys and values."""
    if min(x.dim() for x in (q, k, v) if x is not None) < 3 or 0 in (k.shape[-3], q.shape[-3]):
        return False
    return (v is None or v.shape[-3] == k.shape[-3]) and q.shape[-3] % k.shape[-3] == 0


def same_for_all_queries(x: Tensor | None) -> bool:
    """Whether a mask or a bias says the same to every query."""
    return x is None or x.dim() < 2 or x.shape[-2] == 1


def couples_rows(map: Any) -> bool:
    """Whether the map has to see all rows at once: by its own word, or because a parameter differs between rows."""
    return bool(getattr(map, "couples_rows", False))


def _same_for_all_heads(x: Tensor | None) -> bool:
    return x is None or x.dim() < 3 or x.shape[-3] == 1


def _alike_for_all_heads(map: Any) -> bool:
    """Whether a map is known to hold nothing that could be one number for each head."""
    kept = Held.by(map)
    return not kept.tensors and kept.known


def _pick(x: Any, size: int, at: int) -> Any:
    """Of every group the head at one place."""
    return x if _same_for_all_heads(x) else x.unflatten(-3, (-1, size))[..., at, :, :]
