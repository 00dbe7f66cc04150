"""The samples of each batch, as a function of the seed and the number of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from regard import _check
from regard._problem import Problem
from regard.training._random import generator


class Batches(Protocol):
    """Data for `fit`: an object with a length that makes a batch of given samples.

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

    `length`: samples in the data.
    `batch_size`: samples per batch over all processes; at most `length`, rounded down to a multiple of `world`.
    `seed`: of the shuffling.
    `rank`: of this process, which takes its part of every batch; default 0.
    `world`: the number of processes; default 1.

    >>> order = Order(length=10, batch_size=4, seed=0)
    >>> epoch, indices = order.at(3)  # two batches an epoch, so this is the second of epoch 1
    >>> epoch, len(indices)
    (1, 4)
    """

    def __init__(self, length: int, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        _check.count("length", length)
        self.batch_size = min(_check.count("batch_size", batch_size), length) // world * world
        if not self.batch_size:
            raise Problem(f"a batch of {min(batch_size, length)} samples cannot be shared by {world} processes.")
        self.length, self.seed, self.rank, self.world = length, seed, rank, world
        self._epoch, self._shuffled = -1, torch.empty(0, dtype=torch.int64)

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.length // self.batch_size

    def at(self, number: int) -> tuple[int, list[int]]:
        """The epoch of batch `number`, and its samples in this process."""
        epoch, batch = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._shuffled = epoch, torch.randperm(self.length, generator=generator(self.seed, epoch))
        share = self.batch_size // self.world
        first = batch * self.batch_size + self.rank * share
        return epoch, self._shuffled[first : first + share].tolist()

    def between(self, first: int, last: int) -> Iterator[tuple[int, list[int]]]:
        """The batches `first`, ..., `last - 1`."""
        return (self.at(number) for number in range(first, last))
