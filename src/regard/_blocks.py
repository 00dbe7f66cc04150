"""Attention in blocks of queries, each computed again in the backward pass (docs/math.md, 4.6)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from regard._algorithms import batch_of
from regard._torch import forward_mode, in_transform

#: Context of some queries, from (q, k, v, mask) and the tensors that the affinity and the map hold.
Rows = Callable[..., Tensor]


@dataclass(frozen=True)
class Held:
    """The tensors inside objects such as affinities and maps, and how to make the objects again from others."""

    tensors: tuple[Tensor, ...]
    known: bool  # False when an object may hold more than can be seen
    objects: tuple[Any, ...]

    @classmethod
    def by(cls, *objects: Any) -> Held:
        """Look into dataclasses and into functions with fixed arguments; of all else nothing is known."""
        tensors = [x for thing in objects for x in _items(thing).values() if isinstance(x, Tensor)]
        return cls(tuple(tensors), all(_transparent(thing) for thing in objects), objects)

    def rebuilt(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The objects with `tensors` in place of their own, in the same order."""
        if not self.tensors:
            return self.objects
        rest, made = iter(tensors), []
        for thing in self.objects:
            changed = {name: next(rest) for name, x in _items(thing).items() if isinstance(x, Tensor)}
            if isinstance(thing, functools.partial):
                made.append(functools.partial(thing.func, *thing.args, **(thing.keywords | changed)))
            else:
                made.append(replace(thing, **changed) if changed else thing)
        return tuple(made)


def _items(thing: Any) -> dict[str, Any]:
    if isinstance(thing, functools.partial):
        return thing.keywords
    if is_dataclass(thing):
        return {f.name: getattr(thing, f.name) for f in fields(thing)}
    return {}


def _transparent(thing: Any) -> bool:
    """Whether all that a thing depends on is in its items: a dataclass or a plain function of regard's own."""
    if isinstance(thing, functools.partial):
        plain_function = not thing.args and _is_plain(thing.func)
    elif is_dataclass(thing) and not callable(thing):
        plain_function = type(thing).__module__.startswith("regard.")
    else:
        plain_function = _is_plain(thing)
    return plain_function and all(
        x is None or isinstance(x, (Tensor, int, float, str, tuple)) for x in _items(thing).values()
    )


def _is_plain(function: Any) -> bool:
    """A function of regard's that closes over nothing."""
    return isinstance(function, FunctionType) and function.__module__.startswith("regard.") and not function.__closure__


def in_blocks(
    rows: Rows,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    size: int | None,
    held: Held,
) -> Tensor:
    """`rows` on blocks of `size` queries (all, if None); the backward pass computes each block again.

    A causal block is given only the keys that its last query may see. `held` are the affinity and the map.
    """
    blocks = Cut(q.shape[-2], k.shape[-2], size or q.shape[-2], mask, causal)
    if size is None:  # nothing is cut, so that a graph for all sizes can be made of it
        return rows(*blocks.whole(q, k, v), *held.tensors)
    if not torch.is_grad_enabled() or in_transform(q):
        return torch.cat([rows(*blocks.of(q, k, v, at), *held.tensors) for at in blocks], -2)
    plain = not torch.compiler.is_compiling() and not torch.is_autocast_enabled(q.device.type)
    if held.known and plain and not forward_mode():
        result: Tensor = _Blocks.apply(rows, blocks, q, k, v, *held.tensors)
        return result
    return torch.cat(checkpointed(rows, blocks, q, k, v, held.tensors), -2)


def checkpointed(rows: Rows, blocks: Cut, q: Tensor, k: Tensor, v: Tensor, held: Sequence[Tensor]) -> list[Tensor]:
    return [checkpoint(rows, *blocks.of(q, k, v, at), *held, use_reentrant=False) for at in blocks]


@dataclass(frozen=True)
class Cut:
    """Where the queries are cut, and what a block sees."""

    queries: int
    keys: int
    size: int
    mask: Tensor | None
    causal: bool

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self.queries, self.size):
            yield slice(start, min(start + self.size, self.queries))

    def seen(self, at: slice) -> int:
        """How many keys the block may see at all."""
        return max(1, min(self.keys, self.keys - self.queries + at.stop)) if self.causal else self.keys

    def of(self, q: Tensor, k: Tensor, v: Tensor, at: slice) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys, values and mask of one block."""
        seen, mask = self.seen(at), self.mask
        if mask is not None and mask.dim() > 0 and mask.shape[-1] > 1:
            mask = mask[..., :seen]
        if mask is not None and mask.dim() > 1 and mask.shape[-2] > 1:
            mask = mask[..., at, :]
        mask = self._masked(mask, at.stop - at.start, seen, at.start, q)
        # A slice of all keys would copy their gradient once more for every block.
        keys, values = (k, v) if seen == self.keys else (k[..., :seen, :], v[..., :seen, :])
        return q[..., at, :], keys, values, mask

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys, values and mask of all at once."""
        return q, k, v, self._masked(self.mask, self.queries, self.keys, 0, q)

    def _masked(self, mask: Tensor | None, queries: int, keys: int, start: int, like: Tensor) -> Tensor | None:
        """The mask of some queries and keys, without what a causal query may not see."""
        if not self.causal:
            return mask
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=like.device)
        allowed = allowed.tril(self.keys - self.queries + start)
        return allowed if mask is None else mask & allowed


class _Blocks(Function):
    """All blocks as one step of the graph, which takes the memory of its results once.

    One step a block would leave small results and gradients between the large scores that come and go; with the usual
    C allocator the gaps are never used again, and a long sequence took ten times the memory that was in use.
    """

    @staticmethod
    def forward(ctx: Any, rows: Rows, blocks: Cut, *tensors: Tensor) -> Tensor:
        q, k, v, *held = tensors
        ctx.rows, ctx.blocks = rows, blocks
        ctx.save_for_backward(*tensors)
        out = q.new_empty(*batch_of(q, k, v), q.shape[-2], v.shape[-1])
        for at in blocks:
            out[..., at, :] = rows(*blocks.of(q, k, v, at), *held)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # a second derivative will be asked for
            q, k, v, *held = tensors
            c = torch.cat(checkpointed(ctx.rows, ctx.blocks, q, k, v, held), -2)
            chosen = [x for x, w in zip(tensors, wanted, strict=True) if w]
            made = iter(torch.autograd.grad(c, chosen, grads[0], create_graph=True, allow_unused=True))
            return None, None, *(next(made) if w else None for w in wanted)
        sums = [torch.zeros_like(x) if w else None for x, w in zip(tensors, wanted, strict=True)]
        for at in ctx.blocks:
            _add_block(ctx.rows, ctx.blocks, at, tensors, sums, grads[0][..., at, :])
        return None, None, *sums


def _add_block(
    rows: Rows, blocks: Cut, at: slice, tensors: Sequence[Tensor], sums: Sequence[Tensor | None], grad: Tensor
) -> None:
    """Add the gradients of one block to `sums`."""
    q, k, v, mask = blocks.of(tensors[0], tensors[1], tensors[2], at)
    leaves = [x.detach().requires_grad_(s is not None) for x, s in zip((q, k, v, *tensors[3:]), sums, strict=True)]
    with torch.enable_grad():
        c = rows(*leaves[:3], mask, *leaves[3:])
    chosen = [x for x in leaves if x.requires_grad]
    made = iter(torch.autograd.grad(c, chosen, grad, allow_unused=True))
    for place, (x, total) in enumerate(zip(leaves, sums, strict=True)):
        found = next(made) if x.requires_grad else None
        if total is None or found is None:
            continue
        if place == 0:
            total[..., at, :] = found
        elif place < 3:
            total[..., : found.shape[-2], :] += found
        else:
            total += found
