"""Pictures of data sets saved by `datasets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._install import install_packages
from regard._problem import Problem
from regard.pictures._read import read


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
