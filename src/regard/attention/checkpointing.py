"""Attention in blocks of queries, each computed again in the backward pass (docs/math.md, 4.6)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from regard._torch import autocasting, forward_mode, in_transform
from regard.attention.fused import batch_of
from regard.attention.random_state import Drawn
from regard.maps._value import Applied, MapValue

#: Queries, keys, values, mask and bias.
Block = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]

#: Context of some queries, from (q, k, v, mask, bias) and the tensors that the affinity and the map hold.
Rows = Callable[..., Tensor]


@dataclass(frozen=True)
class Held:
    """The tensors inside objects such as affinities and maps, and how to make the objects again from others."""

    tensors: tuple[Tensor, ...]
    known: bool  # False when an object may hold more than can be seen
    objects: tuple[Any, ...]

    @classmethod
    def by(cls, *objects: Any) -> Held:
        """Look into dataclasses and maps; of all else nothing is known."""
        tensors = [x for thing in objects for x in _items(thing).values() if isinstance(x, Tensor)]
        return cls(tuple(tensors), all(_transparent(thing) for thing in objects), objects)

    def rebuilt(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The objects with `tensors` in place of their own, in the same order."""
        if not self.tensors:
            return self.objects
        rest, made = iter(tensors), []
        for thing in self.objects:
            changed = {name: next(rest) for name, x in _items(thing).items() if isinstance(x, Tensor)}
            if isinstance(thing, MapValue):
                made.append(thing.with_parameters(**changed) if changed else thing)
            else:
                made.append(replace(thing, **changed) if changed else thing)
        return tuple(made)


def _items(thing: Any) -> dict[str, Any]:
    if isinstance(thing, MapValue):
        return thing.parameters
    if is_dataclass(thing):
        return {f.name: getattr(thing, f.name) for f in fields(thing)}
    return {}


def _transparent(thing: Any) -> bool:
    """Whether all that a thing depends on is in its items: a dataclass or a plain function of regard's own."""
    if isinstance(thing, Applied):
        own = not thing.arguments and _is_plain(thing.of)
    elif is_dataclass(thing):
        own = type(thing).__module__.startswith("regard.")
    else:
        own = _is_plain(thing)
    return own and all(x is None or isinstance(x, (Tensor, int, float, str, tuple)) for x in _items(thing).values())


def _is_plain(function: Any) -> bool:
    """A function of regard's that closes over nothing."""
    return isinstance(function, FunctionType) and function.__module__.startswith("regard.") and not function.__closure__


def in_blocks(
    rows: Rows, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, blocks: Cut, held: Held, *, random: bool = False
) -> Tensor:
    """`rows` on blocks of queries, or on all at once; the backward pass computes each block again.

    A causal block is given only the keys that its last query may see. `held` are the affinity and the map. `random`
    says that `rows` draws numbers: those of the forward pass are drawn again.
    """
    if blocks.size is None:  # nothing is cut, so that a graph for all sizes can be made of it
        return rows(*blocks.whole(q, k, v, bias), *held.tensors)
    if not torch.is_grad_enabled() or in_transform(q):
        return torch.cat([rows(*blocks.of(q, k, v, bias, at), *held.tensors) for at in blocks], -2)
    plain = not torch.compiler.is_compiling() and not autocasting(q.device)
    if held.known and plain and not forward_mode():
        result: Tensor = _Blocks.apply(rows, blocks, random, q, k, v, bias, *held.tensors)
        return result
    return torch.cat(checkpointed(rows, blocks, q, k, v, bias, held.tensors), -2)


def checkpointed(
    rows: Rows, blocks: Cut, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, held: Sequence[Tensor]
) -> list[Tensor]:
    """The contexts of the blocks, each a checkpoint of torch's, which can be differentiated twice."""
    return [checkpoint(rows, *blocks.of(q, k, v, bias, at), *held, use_reentrant=False) for at in blocks]


@dataclass(frozen=True)
class Cut:
    """Where the queries are cut (nowhere, if `size` is None), and what a block sees.

    Query i sees the keys up to i + `diagonal`, or all if that is None.
    """

    queries: int
    keys: int
    size: int | None
    mask: Tensor | None
    diagonal: int | None

    def __iter__(self) -> Iterator[slice]:
        size = self.size or self.queries
        for start in range(0, self.queries, size):
            yield slice(start, min(start + size, self.queries))

    def seen(self, at: slice) -> int:
        """How many keys the block may see at all."""
        return self.keys if self.diagonal is None else max(1, min(self.keys, self.diagonal + at.stop))

    def of(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, at: slice) -> Block:
        """Queries, keys, values, mask and bias of one block."""
        seen = self.seen(at)
        mask = None if self.mask is None else self.part(self.mask, at)
        mask = self._masked(mask, at.stop - at.start, seen, at.start, q)
        # A slice of all keys would copy their gradient once more for every block.
        keys, values = (k, v) if seen == self.keys else (k[..., :seen, :], v[..., :seen, :])
        return q[..., at, :], keys, values, mask, None if bias is None else self.part(bias, at)

    def part(self, x: Tensor, at: slice) -> Tensor:
        """What a block sees of a mask or a bias that broadcasts to all pairs."""
        if x.dim() > 0 and x.shape[-1] > 1:
            x = x[..., : self.seen(at)]
        return x[..., at, :] if x.dim() > 1 and x.shape[-2] > 1 else x

    def whole(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Block:
        """Queries, keys, values, mask and bias of all at once."""
        return q, k, v, self._masked(self.mask, self.queries, self.keys, 0, q), bias

    def _masked(self, mask: Tensor | None, queries: int, keys: int, start: int, like: Tensor) -> Tensor | None:
        """The mask of some queries and keys, without what a causal query may not see."""
        if self.diagonal is None:
            return mask
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril(self.diagonal + start)
        return allowed if mask is None else mask & allowed


class _Blocks(Function):
    """All blocks as one step of the graph, which takes the memory of its results once.

    One step a block would leave small results and gradients between the large scores that come and go; with the usual
    C allocator the gaps are never used again, and a long sequence took ten times the memory that was in use.
    """

    @staticmethod
    def forward(ctx: Any, rows: Rows, blocks: Cut, random: bool, *tensors: Any) -> Tensor:
        q, k, v, bias, *held = tensors
        ctx.rows, ctx.blocks = rows, blocks
        ctx.drawn = Drawn.from_here(q.device) if random else None
        ctx.save_for_backward(*tensors)
        out: Tensor = q.new_empty(*batch_of(q, k, v), q.shape[-2], v.shape[-1])
        for at in blocks:
            out[..., at, :] = rows(*blocks.of(q, k, v, bias, at), *held)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        with contextlib.nullcontext() if ctx.drawn is None else ctx.drawn.again():
            if torch.is_grad_enabled():  # a second derivative will be asked for
                q, k, v, bias, *held = tensors
                c = torch.cat(checkpointed(ctx.rows, ctx.blocks, q, k, v, bias, held), -2)
                chosen = [x for x, w in zip(tensors, wanted, strict=True) if w]
                made = iter(torch.autograd.grad(c, chosen, grads[0], create_graph=True, allow_unused=True))
                return None, None, None, *(next(made) if w else None for w in wanted)
            sums = [torch.zeros_like(x) if w else None for x, w in zip(tensors, wanted, strict=True)]
            for at in ctx.blocks:
                _add_block(ctx.rows, ctx.blocks, at, tensors, sums, grads[0][..., at, :])
        return None, None, None, *sums


def _add_block(
    rows: Rows, blocks: Cut, at: slice, tensors: Sequence[Any], sums: Sequence[Tensor | None], grad: Tensor
) -> None:
    """Add the gradients of one block to `sums`."""
    q, k, v, bias, *held = tensors
    q, k, v, mask, bias = blocks.of(q, k, v, bias, at)
    leaves: list[Any] = [q, k, v, bias, *held]
    for place, total in enumerate(sums):
        if leaves[place] is not None:
            leaves[place] = leaves[place].detach().requires_grad_(total is not None)
    with torch.enable_grad():
        c = rows(*leaves[:3], mask, *leaves[3:])
    chosen = [x for x, total in zip(leaves, sums, strict=True) if total is not None]
    made = iter(torch.autograd.grad(c, chosen, grad, allow_unused=True))
    for place, total in enumerate(sums):
        if total is None or (found := next(made)) is None:
            continue
        if place == 0:
            total[..., at, :] = found
        elif place < 3:
            total[..., : found.shape[-2], :] += found
        elif place == 3:
            blocks.part(total, at).add_(found)
        else:
            total += found
