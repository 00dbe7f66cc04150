"""Pictures inside larger files: tars in the form of webdataset, and data sets saved by `datasets`."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._install import install_packages
from regard._problem import Problem
from regard.pictures._read import read
from regard.pictures._sources import SUFFIXES


class Tars:
    """The pictures of tar files ("shards") named as webdataset does: key.jpg, and key.cls with its label.

    The names are listed once; pictures are then read at their offsets, without unpacking. Labels are used only if all
    pictures have one. Compressed tars are refused.

    >>> import io, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/0.tar", "w") as tar:
    ...         png = io.BytesIO()
    ...         Image.new("RGB", (6, 4)).save(png, "png")
    ...         for name, content in (("a.png", png.getvalue()), ("a.cls", b"7")):
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(content)
    ...             tar.addfile(member, io.BytesIO(content))
    ...     pictures = Tars([f"{folder}/0.tar"])
    ...     pictures[0].shape, pictures.classes
    (torch.Size([3, 4, 6]), ['7'])
    """

    def __init__(self, shards: Sequence[Path | str]) -> None:
        self.shards = [Path(shard) for shard in shards]
        self._members: list[tuple[int, str, int, int]] = []  # shard, name, offset, size
        names: list[str | None] = []
        for number, shard in enumerate(self.shards):
            names += self._list(number, shard)
        if not self._members:
            raise Problem(f"{', '.join(map(str, self.shards))}: no pictures in it. A tar needs files such as 0001.jpg.")
        labels = [label for label in names if label is not None]
        self.labels: list[int] | None = None
        self.classes = sorted(set(labels), key=lambda c: (not c.isdigit(), int(c) if c.isdigit() else 0, c))
        if labels and len(labels) == len(names):
            numbers = {c: i for i, c in enumerate(self.classes)}
            self.labels = [numbers[label] for label in labels]
        else:
            self.classes = []

    def _list(self, number: int, shard: Path) -> list[str | None]:
        """Add the pictures of one shard to the members, and return the label of each, or None."""
        labels: dict[str, str] = {}
        pictures: list[tuple[str, str, int, int]] = []
        try:
            with tarfile.open(shard, "r:") as tar:
                for member in tar:
                    folder, _, file = member.name.rpartition("/")
                    stem, _, suffix = file.partition(".")
                    key = f"{folder}/{stem}"
                    if not member.isfile() or not stem:
                        continue
                    if f".{suffix.rsplit('.', 1)[-1].lower()}" in SUFFIXES:
                        pictures.append((key, member.name, member.offset_data, member.size))
                    elif suffix == "cls" and (file_ := tar.extractfile(member)):
                        labels[key] = file_.read().decode("utf-8", "replace").strip()
        except (tarfile.TarError, OSError, EOFError) as error:
            raise Problem(
                f"{shard} is not a plain tar ({error}). Unpack or make it again without compression."
            ) from error
        self._members += [(number, name, offset, size) for _, name, offset, size in pictures]
        return [labels.get(key) for key, *_ in pictures]

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> Tensor:
        shard, _, offset, size = self._members[index]
        with self.shards[shard].open("rb") as file:
            file.seek(offset)
            return read(file.read(size), name=self.name(index))

    def member(self, index: int) -> tuple[str, int]:
        """The name of a picture inside its shard, and its bytes."""
        _, name, _, size = self._members[index]
        return name, size

    def name(self, index: int) -> str:
        """The shard and the name inside it."""
        shard, name, _, _ = self._members[index]
        return f"{self.shards[shard]}:{name}"


class SavedDataset:
    """A data set that `datasets` saved with `save_to_disk`, read by pyarrow. Of several splits it takes "train".

    Pictures are the first column of structs (`{bytes, path}`), labels the first column of integers with "label" in its
    name. Pixels stored as arrays are not supported.

    >>> SavedDataset("nowhere")
    Traceback (most recent call last):
    regard._problem.Problem: nowhere is ...
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        try:
            import pyarrow as arrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise Problem(
                f"{folder} is a saved data set, which needs pyarrow. Try: {install_packages('pyarrow')}"
            ) from error
        place = self.folder
        if (place / "dataset_dict.json").is_file():
            splits = json.loads((place / "dataset_dict.json").read_text())["splits"]
            place = place / ("train" if "train" in splits else splits[0])
        try:
            files = [place / f["filename"] for f in json.loads((place / "state.json").read_text())["_data_files"]]
            tables = [arrow.ipc.open_stream(arrow.memory_map(str(path))).read_all() for path in files]
            table = arrow.concat_tables(tables)
        except (OSError, KeyError, ValueError, arrow.ArrowInvalid) as error:
            raise Problem(f"{folder} is not a whole saved data set ({error}). Save it again.") from error
        structs = [f.name for f in table.schema if arrow.types.is_struct(f.type) and "bytes" in _fields(f.type)]
        if not structs or not len(table):
            raise Problem(f"{folder} has no column of pictures, only {', '.join(table.schema.names)}.")
        self._column = table[structs[0]]
        label_columns = [f.name for f in table.schema if "label" in f.name and arrow.types.is_integer(f.type)]
        self.labels: list[int] | None = table[label_columns[0]].to_pylist() if label_columns else None
        self.classes = self._names(place, label_columns[0]) if label_columns else []

    def _names(self, place: Path, column: str) -> list[str]:
        """The names of the classes, or their numbers if the data set has no names."""
        info = place / "dataset_info.json"
        features: Any = json.loads(info.read_text()).get("features", {}) if info.is_file() else {}
        count = int(torch.tensor(self.labels).max()) + 1
        return list(features.get(column, {}).get("names") or map(str, range(count)))

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> Tensor:
        value = self._column[index].as_py()
        if value["bytes"] is not None:
            return read(value["bytes"], name=self.name(index))
        return read(Path(value["path"]))

    def name(self, index: int) -> str:
        """The folder and the row."""
        return f"{self.folder}: row {index}"


def _fields(kind: Any) -> list[str]:
    """The names of the fields of a struct type."""
    return [kind.field(i).name for i in range(kind.num_fields)]
