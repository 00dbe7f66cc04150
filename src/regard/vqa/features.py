"""Grid features on disk: made once by a backbone, then memory-mapped and read row by row.

A store is a folder:

    features.bin    (pictures, h, w, D) float16, one row after the other
    state.bin       a byte per row: 0 not made yet, 1 made, 2 the picture cannot be read
    store.json      names of the pictures in the order of the rows, shape, and the `FeatureDescription`
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from regard._files import replacing
from regard._problem import Problem
from regard.backbones import Backbone, fingerprint, load_backbone, make_backbone, save_backbone
from regard.backbones._known import SMALL_SIZES
from regard.pictures import read
from regard.vqa.description import FeatureDescription
from regard.vqa.grids import grids
from regard.vqa.records import Skipped

WAITING, MADE, BROKEN = 0, 1, 2
_RELEASE = 64  # rows to read before the kernel is advised to drop their pages; it maps pages around each as well


@dataclass(frozen=True)
class FeatureStore:
    """Stored features: `store[names]` reads rows as float32, `store.has(name)` says whether a picture has any.

    Rows are memory-mapped. Every few rows the kernel is advised to drop the pages (MADV_DONTNEED), so that the memory
    of a training run does not grow with the number of pictures.

    >>> import tempfile
    >>> from regard.backbones import make_backbone
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

    @classmethod
    def open(cls, folder: Path | str, expected: FeatureDescription | None = None) -> FeatureStore:
        """The store in a folder; a Problem that names the difference if its features are not the `expected` ones."""
        folder = Path(folder)
        try:
            content = json.loads((folder / "store.json").read_text())
            store = cls(folder, tuple(content["names"]), tuple(content["shape"]), _description(content))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"{folder} holds no features ({error}). Make them: regard features") from error
        size = len(store.names) * store._width * 2
        if not (folder / "features.bin").is_file() or (folder / "features.bin").stat().st_size != size:
            raise Problem(f"{folder / 'features.bin'} does not have the {size} bytes that store.json says. Remake it.")
        if expected is not None and (difference := store.description.difference(expected)):
            raise Problem(
                f"the features in {folder}, made by {store.description.name}, are not those that are needed: "
                f"{difference}. Make them again: regard features"
            )
        return store

    @property
    def _width(self) -> int:
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
        return numpy.fromfile(self.folder / "state.bin", dtype=numpy.uint8)

    def has(self, name: str) -> bool:
        """Whether the store has the features of this picture."""
        return name in self.numbers and bool(self.state[self.numbers[name]] == MADE)

    @cached_property
    def _rows(self) -> _MappedRows:
        return _MappedRows(self.folder / "features.bin", len(self.names), self._width)

    def __getitem__(self, names: Sequence[str]) -> Tensor:
        """Rows, (len(names), h, w, D) float32."""
        rows = self._rows.read([self.numbers[name] for name in names])
        return torch.from_numpy(rows.astype(numpy.float32)).reshape(len(names), *self.shape)

    def sample(self, count: int) -> Tensor:
        """At most `count` rows spread evenly over the store, (<= count, h, w, D), for statistics."""
        names = [name for name in self.names if self.has(name)]
        return self[names[:: max(1, len(names) // count)][:count]]


class _MappedRows:
    """A memory-mapped file of float16 rows."""

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self.path = path
        with path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.array = numpy.frombuffer(self.memory, dtype=numpy.float16).reshape(rows, width)
        self.rows_since_release = 0

    def read(self, numbers: list[int]) -> numpy.ndarray[Any, numpy.dtype[numpy.float16]]:
        rows: numpy.ndarray[Any, numpy.dtype[numpy.float16]] = self.array[numbers]
        self.rows_since_release += len(numbers)
        if self.rows_since_release >= _RELEASE:
            self.rows_since_release = 0
            if hasattr(self.memory, "madvise"):
                self.memory.madvise(mmap.MADV_DONTNEED)
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map cannot be pickled: another process maps the file again.
        return _MappedRows, (self.path, *self.array.shape)


def make_features(
    folder: Path | str,
    pictures: Mapping[str, Path | Tensor],
    backbone: Backbone,
    *,
    name: str = "backbone",
    stages: bool = False,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[FeatureStore, Skipped]:
    """Run a backbone once over pictures and store the grids; return the store, and notes on unreadable pictures.

    Rerun to resume, with the same backbone and pictures: at most one batch is computed again. The row of a picture that
    cannot be read stays empty.

    `folder`: the folder of the store.
    `pictures`: name to path, or to a tensor (3, H, W) uint8.
    `backbone`: in any mode; it is put into evaluation mode for the call.
    `name`: the backbone's name or folder, from which it can be loaded; default "backbone".
    `stages`: store the maps of all stages, see `grids`; default False.
    `batch`: pictures per forward pass; default 64.
    `progress`: called after each batch with the pictures done and to do; default None.

    >>> import tempfile
    >>> from regard.backbones import make_backbone
    >>> pictures = {"a": torch.zeros(3, 16, 16, dtype=torch.uint8), "b": torch.ones(3, 16, 16, dtype=torch.uint8)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store, skipped = make_features(folder, pictures, make_backbone("small", widths=[4], depths=[1], size=16))
    >>> store.names, bool(skipped)
    (('a', 'b'), False)
    """
    folder, names = Path(folder), tuple(pictures)
    if not names:
        raise Problem(f"there are no pictures to make features of for {folder}. Check where the pictures are.")
    device = next(backbone.parameters()).device
    training = backbone.training
    backbone.eval()
    skipped = Skipped()
    try:
        store = _start(folder, names, backbone, name, stages)
        state = numpy.memmap(folder / "state.bin", dtype=numpy.uint8, mode="r+")
        rows = numpy.memmap(folder / "features.bin", dtype=numpy.float16, mode="r+", shape=(len(names), store._width))
        for row in numpy.flatnonzero(state == BROKEN):
            skipped.add("picture that cannot be read", f"{names[int(row)]} (met before)")
        waiting = [int(i) for i in numpy.flatnonzero(state == WAITING)]
        for start in range(0, len(waiting), batch):
            numbers, ready = waiting[start : start + batch], []
            for i in numbers:
                try:
                    ready.append((i, backbone.prepare(_picture(pictures[names[i]])[None])))
                except Problem as problem:
                    skipped.add("picture that cannot be read", str(problem))
                    state[i] = BROKEN
            if ready:
                with torch.inference_mode():
                    features = grids(backbone, torch.cat([x for _, x in ready]).to(device), stages)
                indices = [i for i, _ in ready]
                rows[indices] = features.reshape(len(indices), -1).half().cpu().numpy()
                rows.flush()
                state[indices] = MADE
            state.flush()
            if progress:
                progress(start + len(numbers), len(waiting))
    finally:
        backbone.train(training)
    return FeatureStore.open(folder), skipped


def kept_backbone(folder: Path, name: str, size: int | None = None, seed: int | None = None) -> tuple[Backbone, Path]:
    """The backbone in a folder, and the folder; made by `name` and saved there if the folder has none.

    A Problem if the folder has another one: it is never overwritten.

    `folder`: where the backbone is, or is saved.
    `name`: what `make_backbone` takes.
    `size`: the side of its input in pixels; default that of `make_backbone`.
    `seed`: of the random weights of an untrained backbone. Default None: an untrained one in the folder with the same
        architecture is used whatever its weights; a new one is seeded with 0.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        backbone = make_backbone(name, size=size)
    if not (folder / "config.json").is_file():
        return backbone, save_backbone(backbone, folder)
    stored = load_backbone(folder)
    any_weights = seed is None and name in SMALL_SIZES and stored.config == backbone.config
    if not any_weights and fingerprint(stored) != fingerprint(backbone):
        raise Problem(
            f"{folder} keeps the backbone that its features were made by (fingerprint {fingerprint(stored)}), and "
            f"{name} is another (fingerprint {fingerprint(backbone)}). Store its features elsewhere (--out), or name "
            f"the one that is there: --backbone {folder}"
        )
    return stored, folder


def _start(folder: Path, names: tuple[str, ...], backbone: Backbone, name: str, stages: bool) -> FeatureStore:
    """The store with empty files, or that of an earlier run on the same pictures."""
    with torch.inference_mode():
        size = backbone.preparation.size
        like = next(backbone.parameters())
        _, height, width, dim = grids(backbone, torch.zeros(1, 3, size, size, device=like.device), stages).shape
    description = FeatureDescription.of(backbone, name, stages)
    if (folder / "store.json").is_file():
        store = FeatureStore.open(folder, expected=description)
        if store.names == names and store.shape == (height, width, dim):
            return store
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "features.bin").open("wb") as file:
        file.truncate(len(names) * height * width * dim * 2)
    (folder / "state.bin").write_bytes(bytes(len(names)))
    content = {"names": names, "shape": [height, width, dim], "features": description.to_json(), "dtype": "float16"}
    with replacing(folder / "store.json") as beside:
        beside.write_text(json.dumps(content))
    return FeatureStore.open(folder)


def _description(content: dict[str, Any]) -> FeatureDescription:
    """The description in a store.json; older ones have the backbone's name and a fingerprint in its place."""
    if "features" in content:
        return FeatureDescription.from_json(content["features"])
    return FeatureDescription.from_json({"name": content["backbone"], "fingerprint": content["fingerprint"]})


def _picture(source: Path | Tensor) -> Tensor:
    return source if isinstance(source, Tensor) else read(source)
