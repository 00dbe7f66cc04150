"""Grid features on disk: made once by a backbone, then read row by row.

A store is a folder:

    features.bin    (pictures, h, w, D) float16, one row after the other; its space is reserved at the start
    origins.bin     for each row the size, the time and a hash of its picture: `regard.vqa.origins`
    state.bin       a byte per row: 0 not made yet, 1 made, 2 the picture cannot be read
    store.json      names and paths of the pictures in the order of the rows, shape, and the `FeatureDescription`

or, if several processes have made it, a manifest of such folders: `regard.vqa.manifest`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from regard._problem import Problem
from regard.vqa.description import FeatureDescription
from regard.vqa.manifest import Manifest
from regard.vqa.origins import ORIGIN, Origin, from_row
from regard.vqa.rows import RowReader

WAITING, MADE, BROKEN = 0, 1, 2


@dataclass(frozen=True)
class FeatureStore:
    """Stored features: `store[names]` reads rows as float32, `store.has(name)` says whether a picture has any.

    Rows are read when they are asked for, so that the memory of a training run does not grow with the pictures.

    >>> import tempfile
    >>> from regard.backbones import make_backbone
    >>> from regard.vqa.features import make_features
    >>> pictures = {"a": torch.zeros(3, 16, 16, dtype=torch.uint8)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store, _ = make_features(folder, pictures, make_backbone("small", widths=[4], depths=[1], size=16))
    ...     store.has("a"), store.has("b"), store[["a"]].shape[-1]
    (True, False, 4)
    """

    folder: Path
    names: tuple[str, ...]
    shape: tuple[int, int, int]  # height, width, D
    description: FeatureDescription
    paths: tuple[str, ...] = ()  # where each picture was read from; "" if it was a tensor; none in older stores
    parts: tuple[FeatureStore, ...] = ()  # the stores that have the rows, one after the other; none: it has them itself

    @classmethod
    def open(cls, folder: Path | str, expected: FeatureDescription | None = None) -> FeatureStore:
        """The store in a folder; a Problem that names the difference if its features are not the `expected` ones."""
        folder = Path(folder)
        places = Manifest.read(folder).places
        if not places:
            return cls.open_part(folder, expected)
        parts = tuple(cls.open_part(place, expected) for place in places)
        if len({(part.shape, part.description) for part in parts}) > 1:
            raise Problem(f"the parts of {folder} are of different backbones. Make them again: regard features --fresh")
        names = tuple(name for part in parts for name in part.names)
        paths = tuple(path for part in parts for path in part.paths)
        return cls(folder, names, parts[0].shape, parts[0].description, paths, parts)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a folder has a store, whole or not."""
        return any((folder / name).is_file() for name in ("store.json", "manifest.json"))

    @classmethod
    def open_part(cls, folder: Path, expected: FeatureDescription | None = None) -> FeatureStore:
        """As `open`, of a folder that has rows itself."""
        try:
            content = json.loads((folder / "store.json").read_text())
            names, paths = tuple(content["names"]), tuple(content.get("paths", ()))
            store = cls(folder, names, tuple(content["shape"]), _description(content), paths)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"{folder} holds no features ({error}). Make them: regard features") from error
        for file, size in ((store.features_file, len(names) * store.width * 2), (store.state_file, len(names))):
            if not file.is_file() or file.stat().st_size < size:
                raise Problem(f"{file} does not have the {size} bytes that store.json says. Remake it: --fresh")
        if expected is not None and (difference := store.description.difference(expected)):
            raise Problem(
                f"the features in {folder}, made by {store.description.name}, are not those that are needed: "
                f"{difference}. Make them again (regard features --fresh), or elsewhere: --out"
            )
        return store

    @property
    def features_file(self) -> Path:
        """All rows."""
        return self.folder / "features.bin"

    @property
    def origins_file(self) -> Path:
        """What each row was made from."""
        return self.folder / "origins.bin"

    @property
    def state_file(self) -> Path:
        """The byte of each row."""
        return self.folder / "state.bin"

    @property
    def width(self) -> int:
        """Numbers in a row."""
        height, width, dim = self.shape
        return height * width * dim

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each picture."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def state(self) -> numpy.ndarray[Any, numpy.dtype[numpy.uint8]]:
        """The byte of each row, as on disk when first read."""
        if self.parts:
            return numpy.concatenate([part.state for part in self.parts])
        return numpy.fromfile(self.state_file, dtype=numpy.uint8, count=len(self.names))

    @cached_property
    def origins(self) -> list[Origin]:
        """What each row was made from, as on disk when first read; unknown in older stores."""
        if self.parts:
            return [origin for part in self.parts for origin in part.origins]
        rows = numpy.fromfile(self.origins_file, ORIGIN, len(self.names)) if self.origins_file.is_file() else ()
        known = [from_row(row) for row in rows]
        return known + [Origin()] * (len(self.names) - len(known))

    def has(self, name: str) -> bool:
        """Whether the store has the features of this picture."""
        return name in self.numbers and bool(self.state[self.numbers[name]] == MADE)

    @cached_property
    def _rows(self) -> RowReader:
        return RowReader(self.features_file, self.width)

    def __getitem__(self, names: Sequence[str]) -> Tensor:
        """Rows, (len(names), h, w, D) float32."""
        if self.parts:
            return self._from_parts(names)
        rows = self._rows.read([self.numbers[name] for name in names])
        return torch.from_numpy(rows.astype(numpy.float32)).reshape(len(names), *self.shape)

    def _from_parts(self, names: Sequence[str]) -> Tensor:
        rows = torch.empty(len(names), *self.shape)
        for part in self.parts:
            if mine := [i for i, name in enumerate(names) if name in part.numbers]:
                rows[mine] = part[[names[i] for i in mine]]
        return rows

    def sample(self, count: int) -> Tensor:
        """At most `count` rows spread evenly over the store, (<= count, h, w, D), for statistics."""
        names = [name for name in self.names if self.has(name)]
        return self[names[:: max(1, len(names) // count)][:count]]

    def contents(self, names: Sequence[str]) -> list[str]:
        """The hash of the picture that each of these rows was made from; "" if it is unknown or there is no row."""
        return [self.origins[self.numbers[name]].content if self.has(name) else "" for name in names]


def _description(content: dict[str, Any]) -> FeatureDescription:
    """The description in a store.json; older ones have the backbone's name and a fingerprint in its place."""
    if "features" in content:
        return FeatureDescription.from_json(content["features"])
    return FeatureDescription.from_json({"name": content["backbone"], "fingerprint": content["fingerprint"]})
