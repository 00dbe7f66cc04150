"""Where queries are cut into blocks whose scores fit in memory, and what a block sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.masks import with_causal

BUDGET = 1 << 21  # numbers in a block of scores, for a CPU's cache; a larger call is computed block by block
BLOCKS_OF_DEVICES = 16  # times that budget on other devices, which need large operations: 128 MB in float32

#: Queries, keys, values, mask and bias.
Block = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def budget(device: torch.device) -> int:
    """Numbers in a block of scores. The meta device counts as a CPU, whose plans it tells.

    >>> budget(torch.device("cpu")) < budget(torch.device("cuda"))
    True
    """
    return BUDGET if device.type in ("cpu", "meta") else BLOCKS_OF_DEVICES * BUDGET


def fits_in_one(call: Call, numbers: int) -> bool:
    """Whether `numbers` of scores fit in one block."""
    return numbers <= budget(call.q.device)


def rows_in_budget(call: Call, numbers: int) -> int:
    """Queries per block, where all of them together need `numbers`."""
    return max(1, budget(call.q.device) * call.queries // max(1, numbers))


@dataclass(frozen=True)
class QueryBlocks:
    """Blocks of `size` queries. Query i sees the keys up to i + `diagonal`, or all if that is None."""

    queries: int
    keys: int
    size: int
    mask: Tensor | None
    diagonal: int | None

    @classmethod
    def of(cls, call: Call, size: int) -> QueryBlocks:
        """The queries of a call in blocks of `size`."""
        return cls(call.queries, call.keys, size, call.mask, call.diagonal)

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self.queries, self.size):
            yield slice(start, min(start + self.size, self.queries))

    def seen(self, at: slice) -> int:
        """The number of keys up to the last one that the block sees."""
        return self.keys if self.diagonal is None else max(1, min(self.keys, self.diagonal + at.stop))

    def block(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, at: slice) -> Block:
        """Queries, keys, values, mask and bias of the block `at`, from those of the call."""
        seen = self.seen(at)
        mask = None if self.mask is None else self.part(self.mask, at)
        diagonal = None if self.diagonal is None else self.diagonal + at.start
        mask = with_causal(mask, diagonal, at.stop - at.start, seen, q.device)
        # A slice of all keys would copy their gradient once more for every block.
        keys, values = (k, v) if seen == self.keys else (k[..., :seen, :], v[..., :seen, :])
        return q[..., at, :], keys, values, mask, None if bias is None else self.part(bias, at)

    def part(self, x: Tensor, at: slice) -> Tensor:
        """What a block sees of a mask or a bias that broadcasts to all pairs."""
        if x.dim() > 0 and x.shape[-1] > 1:
            x = x[..., : self.seen(at)]
        return x[..., at, :] if x.dim() > 1 and x.shape[-2] > 1 else x
