"""The samples of each batch, as a function of the seed and the number of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard import _check
from regard._problem import Problem
from regard.training._random import generator

_GROUPS, _WITHIN = 601, 602  # keys of the random numbers


@dataclass(frozen=True)
class SampleGroups:
    """Samples that are stored together, as those of a shard, and how many groups are shuffled together.

    `sizes`: samples of each group, in the order of their indices.
    `mixed`: groups in a window, in which samples are shuffled.

    >>> SampleGroups([3, 2, 4], mixed=2).windows
    2
    """

    sizes: Sequence[int]
    mixed: int

    def __post_init__(self) -> None:
        """Check the number."""
        _check.count("mixed", self.mixed)

    @property
    def windows(self) -> int:
        """Windows in an epoch."""
        return -(-len(self.sizes) // self.mixed)


class Batches(Protocol):
    """Data for `fit`: an object with a length that makes a batch of given samples.

    It may have `sample_groups`, a `SampleGroups`: samples that are read together; and `ahead(numbers)`, which is called
    with the numbers of the groups that are read next.

    >>> class Squares:
    ...     def __len__(self):
    ...         return 10
    ...     def batch(self, indices, epoch):
    ...         return torch.tensor(indices) ** 2
    >>> Squares().batch([1, 2, 3], epoch=0)
    tensor([1, 4, 9])
    """

    def __len__(self) -> int: ...

    def batch(self, indices: list[int], epoch: int) -> Any:
        """What the loss takes, of these samples; random parts may depend on (epoch, index) only."""


class Order:
    """The samples of every batch, shuffled in each epoch; an incomplete last batch is dropped.

    With groups, those are shuffled, and then the samples within each window of some groups, so that few groups are in
    use at a time and memory grows with a window, not with the data. If all groups are in one window, the order is that
    without groups. It is a function of seed, epoch and position in any case.

    `length`: samples in the data.
    `batch_size`: samples per batch over all processes; at most `length`, rounded down to a multiple of `world`.
    `seed`: of the shuffling.
    `rank`: of this process, which takes its part of every batch; default 0.
    `world`: the number of processes; default 1.
    `groups`: samples that are stored together; default None.

    >>> order = Order(length=10, batch_size=4, seed=0)
    >>> epoch, indices = order.at(3)  # two batches an epoch, so this is the second of epoch 1
    >>> epoch, len(indices)
    (1, 4)
    """

    def __init__(
        self, length: int, batch_size: int, seed: int, rank: int = 0, world: int = 1, groups: SampleGroups | None = None
    ) -> None:
        _check.count("length", length)
        self.batch_size = min(_check.count("batch_size", batch_size), length) // world * world
        if not self.batch_size:
            raise Problem(f"a batch of {min(batch_size, length)} samples cannot be shared by {world} processes.")
        self.length, self.seed, self.rank, self.world = length, seed, rank, world
        if groups is not None and sum(groups.sizes) != length:
            raise ValueError(
                f"groups: got {sum(groups.sizes)} samples, expected {length}. Give the size of each group."
            )
        self._groups = 0 if groups is None else len(groups.sizes)
        self._windows = _Windows(groups, seed) if groups is not None and groups.windows > 1 else None
        self._epoch, self._shuffled = -1, torch.empty(0, dtype=torch.int64)

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.length // self.batch_size

    def at(self, number: int) -> tuple[int, list[int]]:
        """The epoch of batch `number`, and its samples in this process."""
        epoch, batch = divmod(number, self.per_epoch)
        share = self.batch_size // self.world
        first = batch * self.batch_size + self.rank * share
        if self._windows is not None:
            return epoch, self._windows.samples(epoch, first, first + share)
        if epoch != self._epoch:
            self._epoch, self._shuffled = epoch, torch.randperm(self.length, generator=generator(self.seed, epoch))
        return epoch, self._shuffled[first : first + share].tolist()

    def between(self, first: int, last: int) -> Iterator[tuple[int, list[int]]]:
        """The batches `first`, ..., `last - 1`."""
        return (self.at(number) for number in range(first, last))

    def groups_ahead(self, number: int) -> list[int]:
        """The groups of the window of batch `number`, then those of the next window; all if there is one window."""
        if self._windows is None:
            return list(range(self._groups))
        epoch, batch = divmod(number, self.per_epoch)
        return self._windows.ahead(epoch, batch * self.batch_size)


class _Windows:
    """The order of samples in groups, by epoch and position."""

    def __init__(self, groups: SampleGroups, seed: int) -> None:
        self.mixed, self.count, self.seed = groups.mixed, groups.windows, seed
        self._sizes = torch.tensor(groups.sizes, dtype=torch.int64)
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._epoch, self._groups, self._ends = -1, self._sizes, self._sizes
        self._shuffled: dict[int, Tensor] = {}

    def samples(self, epoch: int, first: int, last: int) -> list[int]:
        """The samples at positions `first`, ..., `last - 1` of an epoch."""
        self._enter(epoch)
        found: list[int] = []
        while first < last:
            window = self._window(first)
            begin = int(self._ends[window - 1]) if window else 0
            part = self._samples_of(window)[first - begin : last - begin]
            found += part.tolist()
            first += len(part)
        return found

    def ahead(self, epoch: int, position: int) -> list[int]:
        """The groups of the window at a position, then those of the next window."""
        self._enter(epoch)
        window = self._window(position)
        groups = self._groups[window * self.mixed : (window + 2) * self.mixed].tolist()
        if window + 1 == self.count:
            groups += self._shuffled_groups(epoch + 1)[: self.mixed].tolist()
        return list(dict.fromkeys(groups))

    def _enter(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch, self._groups, self._shuffled = epoch, self._shuffled_groups(epoch), {}
        last = torch.arange(1, self.count + 1) * self.mixed - 1
        self._ends = self._sizes[self._groups].cumsum(0)[last.clamp(max=len(self._sizes) - 1)]

    def _shuffled_groups(self, epoch: int) -> Tensor:
        return torch.randperm(len(self._sizes), generator=generator(self.seed, epoch, _GROUPS))

    def _window(self, position: int) -> int:
        return int(torch.searchsorted(self._ends, position, right=True))

    def _samples_of(self, window: int) -> Tensor:
        """The samples of a window of this epoch, shuffled; the last two windows are kept."""
        if window not in self._shuffled:
            groups = self._groups[window * self.mixed : (window + 1) * self.mixed]
            sizes = self._sizes[groups]
            inside = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
            samples = self._starts[groups].repeat_interleave(sizes) + inside
            shuffling = torch.randperm(len(samples), generator=generator(self.seed, self._epoch, _WITHIN, window))
            while len(self._shuffled) > 1:
                del self._shuffled[next(iter(self._shuffled))]
            self._shuffled[window] = samples[shuffling]
        return self._shuffled[window]
