"""End-to-end training: pictures in place of stored features, with the backbone in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard._problem import Problem
from regard.backbones import Backbone
from regard.pictures import read, square
from regard.vqa.description import FeatureDescription
from regard.vqa.grids import grids
from regard.vqa.origins import hash_of


class PixelStore:
    """Pictures with the interface of a `FeatureStore`: rows are pictures (B, 3, size, size) uint8.

    They are decoded once and stay in memory: for small data. `has` is False for a picture that cannot be read.
    `backbone` is trained with the model.
    """

    def __init__(self, pictures: Mapping[str, Path], backbone: Backbone, name: str) -> None:
        """Run the backbone once, on an empty picture, for the shape of its grid."""
        self.pictures, self.network = dict(pictures), backbone
        self.folder = next(iter(self.pictures.values())).parent
        self.description = FeatureDescription.of(backbone, name)
        self.names = tuple(self.pictures)
        self.decoded: dict[str, Tensor | None] = {}
        size = backbone.preparation.size
        with torch.no_grad():
            _, height, width, dim = grids(backbone.eval(), torch.zeros(1, 3, size, size)).shape
        self.shape: tuple[int, int, int] = (height, width, dim)

    def has(self, name: str) -> bool:
        """Whether there is a picture of this name that can be read."""
        return name in self.pictures and self._decode(name) is not None

    def __getitem__(self, names: Sequence[str]) -> Tensor:
        """Pictures, (len(names), 3, size, size) uint8."""
        rows = [self._decode(name) for name in names]
        return torch.stack([row for row in rows if row is not None])

    def sample(self, count: int) -> Tensor:
        """Features of at most `count` pictures by the backbone as it is now, for statistics."""
        chosen = [name for name in self.names[:: max(1, len(self.names) // count)][:count] if self.has(name)]
        with torch.no_grad():
            return grids(self.network.eval(), self.network.prepare(self[chosen]))

    def contents(self, names: Sequence[str]) -> list[str]:
        """The hash of each of these pictures; "" for one that cannot be read."""
        return [hash_of(self.pictures[name]) if self.has(name) else "" for name in names]

    def _decode(self, name: str) -> Tensor | None:
        """The picture, decoded once; None if it cannot be read."""
        if name not in self.decoded:
            try:
                self.decoded[name] = square(read(self.pictures[name]), self.network.preparation.size)
            except Problem:
                self.decoded[name] = None
        return self.decoded[name]
