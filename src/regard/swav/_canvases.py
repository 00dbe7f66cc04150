"""Pictures as squares of one side, in batches: the data of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.pictures import Arrays, Pictures, Tars, square, take
from regard.swav._labelled import Subset
from regard.training import SampleGroups

MEMORY = 1 << 29  # bytes of squared pictures that may be cached


class _Canvas(NamedTuple):
    """A squared picture, its width over its height before, the number it was read from, and notes on broken files."""

    picture: Tensor
    aspect: float
    source: int
    broken: tuple[tuple[str, str], ...]


class Canvases:
    """Pictures resized to squares of one side, as data for `fit`. A broken one is replaced by the next, and noted.

    They are cached if all fit into `MEMORY` and `keep` is True (default); loader processes would cache each their own.
    Shards are read in the order of `groups`: `mixed` of them are shuffled together, default 16.

    >>> from regard.pictures import Arrays
    >>> data = Canvases(Arrays(torch.rand(5, 3, 20, 30)), side=16)
    >>> data.batch([0, 3], epoch=0)["pictures"].shape
    torch.Size([2, 3, 16, 16])
    """

    def __init__(self, pictures: Pictures, side: int, keep: bool = True, mixed: int = 16) -> None:
        self.pictures, self.side = pictures, side
        inner = pictures.source if isinstance(pictures, Subset) else pictures
        self._requested = inner if isinstance(inner, Tars) and not inner.store.is_local else None
        self.sample_groups = SampleGroups(pictures.counts, mixed) if isinstance(pictures, Tars) else None
        self._cache: dict[int, _Canvas] = {}
        self._caches = keep and len(pictures) * 3 * side * side <= MEMORY
        self._all: Tensor | None = None
        if isinstance(pictures, Arrays) and pictures.pictures.shape[-2:] == (side, side):
            self._all = pictures.pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def ahead(self, shards: Sequence[int]) -> None:
        """Say which shards are read next."""
        if isinstance(self.pictures, Tars):
            self.pictures.ahead(shards)

    def faults(self) -> list[tuple[str, str]]:
        """Names and errors of requests that a server failed and that were repeated, since the last call."""
        return [] if self._requested is None else self._requested.faults()

    def batch(self, indices: list[int], epoch: int) -> dict[str, Any]:
        """Pictures (B, 3, side, side) uint8, aspect (width over height), index, epoch, and notes on broken files.

        `taken` is the index that each picture was read from: another one, if a file is broken. `retried`, of pictures
        from a server, has name and error of each request that failed and was repeated.
        """
        index = torch.tensor(indices)
        if self._all is not None:
            aspect = torch.ones(len(index))
            return {"pictures": self._all[index], "aspect": aspect, "index": index, "taken": index, "epoch": epoch}
        samples = [self._sample(i) for i in indices]
        return {
            "pictures": torch.stack([sample.picture for sample in samples]),
            "aspect": torch.tensor([sample.aspect for sample in samples]),
            "index": index,
            "taken": torch.tensor([sample.source for sample in samples]),
            "epoch": epoch,
            "broken": [note for sample in samples for note in sample.broken],
            **({} if self._requested is None else {"retried": self.faults()}),
        }

    def _sample(self, index: int) -> _Canvas:
        if index in self._cache:
            return self._cache[index]
        taken = take(self.pictures, index)
        height, width = taken.picture.shape[-2:]
        sample = _Canvas(square(taken.picture, self.side), width / height, taken.index, taken.broken)
        if self._caches:
            self._cache[index] = sample
        return sample
