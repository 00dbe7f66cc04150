"""Logs of a run: CSV or TensorBoard."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from regard._files import replacing
from regard._install import install_packages
from regard._problem import Problem
from regard.training._folder import RunFolder

NONE: Mapping[str, Sequence[float]] = MappingProxyType({})


class Log(Protocol):
    """Logs the numbers of steps."""

    def write(self, step: int, values: Mapping[str, float], lists: Mapping[str, Sequence[float]] = NONE) -> None:
        """Log the numbers of a step by name; `lists` have several numbers under one name."""

    def close(self) -> None:
        """Flush; called after the last step."""


def open_log(kind: str, folder: RunFolder, start: int) -> Log:
    """The log of a run that begins after step `start`; entries of later steps by an earlier process are dropped."""
    if kind == "csv":
        return CsvLog(folder.log, start, folder.table)
    return TensorBoardLog(folder.tensorboard, start) if kind == "tensorboard" else NoLog()


class NoLog:
    """No log."""

    def write(self, step: int, values: Mapping[str, float], lists: Mapping[str, Sequence[float]] = NONE) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class CsvLog:
    """A CSV file with a row per logged step. A new name adds a column, empty in earlier rows.

    A list is in its own file, `table(name)`.
    """

    def __init__(self, path: Path, start: int, table: Callable[[str], Path]) -> None:
        self.path, self.start, self.table = path, start, table
        self._lists: dict[str, CsvLog] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rows: list[dict[str, Any]] = []
        if path.is_file() and start:
            self._rows = _whole_rows(path, start)
        self._names = list(self._rows[0]) if self._rows else ["step"]
        self._rewrite()

    def write(self, step: int, values: Mapping[str, float], lists: Mapping[str, Sequence[float]] = NONE) -> None:
        """Append a row."""
        for name, numbers in lists.items():
            if name not in self._lists:
                self._lists[name] = CsvLog(self.table(name), self.start, self.table)
            self._lists[name].write(step, {str(i): number for i, number in enumerate(numbers)})
        row = {"step": step, **{name: f"{value:.9g}" for name, value in values.items()}}
        self._rows.append(row)
        if new := [name for name in row if name not in self._names]:
            self._names += new
            self._rewrite()
        else:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self._names).writerow(row)

    def close(self) -> None:
        """Every row is on disk already."""

    def _rewrite(self) -> None:
        with replacing(self.path) as beside, beside.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._names)
            writer.writeheader()
            writer.writerows(self._rows)


def _whole_rows(path: Path, last: int) -> list[dict[str, Any]]:
    """The rows of a log up to a step, without one that a killed process wrote half of: "2" of "210,0.5"."""
    rows: list[dict[str, Any]] = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            whole = None not in row and None not in row.values() and row.get("step", "").isdigit()
            if whole and (int(rows[-1]["step"]) if rows else 0) < int(row["step"]) <= last:
                rows.append(row)
    return rows


class TensorBoardLog:
    """Scalars for TensorBoard; lists as histograms."""

    def __init__(self, folder: Path, start: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise Problem(f"logs for TensorBoard need it: {install_packages('tensorboard')}, or log to CSV.") from error
        self._writer = SummaryWriter(str(folder), purge_step=start + 1 if start else None)

    def write(self, step: int, values: Mapping[str, float], lists: Mapping[str, Sequence[float]] = NONE) -> None:
        """Add one scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        for name, numbers in lists.items():
            self._writer.add_histogram(name, torch.tensor(numbers), step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()
