"""The folders of a pretraining run and of a fine-tuning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard.swav._labelled import LabelSplit
from regard.training import RunFolder


@dataclass(frozen=True)
class Retries:
    """How often something was asked for again, and the last error.

    >>> Retries().once_more("timeout")
    Retries(count=1, error='timeout')
    """

    count: int = 0
    error: str = ""

    def once_more(self, error: str) -> Retries:
        """With one more."""
        return Retries(self.count + 1, error)


@dataclass(frozen=True)
class PicturesFolder(RunFolder):
    """The folder of a run that learns from pictures: what any run has, and

        broken.txt         files that could not be read, and why
        retried.txt        what a server failed to send and was asked for again: how often, and the last error
                           (lines are added to both while it runs; at its end each name has one)
        evaluation.json    the evaluation at the end, if pictures have labels

    >>> PicturesFolder(Path("out/photos")).broken.as_posix()
    'out/photos/broken.txt'
    """

    @property
    def broken(self) -> Path:
        """The list of files that could not be read."""
        return self.path / "broken.txt"

    @property
    def retried(self) -> Path:
        """The list of what a server failed to send and was asked for again."""
        return self.path / "retried.txt"

    def write_broken(self, reasons: Mapping[str, str]) -> None:
        """Write the names of files that could not be read, each with the reason."""
        with replacing(self.broken) as beside:
            text = "".join(_line(name, reason) for name, reason in sorted(reasons.items()))
            beside.write_text(text, encoding="utf-8")

    def add_broken(self, reasons: Mapping[str, str]) -> None:
        """Add names of files that could not be read, each with the reason; from any process."""
        _append(self.broken, "".join(_line(name, reason) for name, reason in reasons.items()))

    def add_retried(self, retried: Mapping[str, Retries]) -> None:
        """Add names of what was asked for again, how often, and the last error; counts of a name add up."""
        _append(self.retried, "".join(_line(name, str(each.count), each.error) for name, each in retried.items()))

    def read_broken(self) -> dict[str, str]:
        """The files that could not be read, with the reasons, as they are written."""
        return {name: reason for name, reason, *_ in _lines(self.broken, 2)}

    def read_retried(self) -> dict[str, Retries]:
        """What was asked for again, as it is written."""
        found: dict[str, Retries] = {}
        for name, count, error, *_ in _lines(self.retried, 3):
            if count.isdigit():
                found[name] = Retries(found.get(name, Retries()).count + int(count), error)
        return found

    def sort_notes(self) -> None:
        """Write each name once, in order, in both files, as far as there are any."""
        if broken := self.read_broken():
            self.write_broken(broken)
        if retried := self.read_retried():
            with replacing(self.retried) as beside:
                text = "".join(_line(name, str(each.count), each.error) for name, each in sorted(retried.items()))
                beside.write_text(text, encoding="utf-8")

    def begin_afresh(self) -> None:
        """Remove an older run: what it could be resumed from, and its results, which would pass for the new ones."""
        super().begin_afresh()
        shutil.rmtree(self.backbone, ignore_errors=True)
        for file in self._results:
            file.unlink(missing_ok=True)

    @property
    def _results(self) -> tuple[Path, ...]:
        """The files that a finished run has."""
        return (self.broken, self.retried, self._evaluation)

    @property
    def _evaluation(self) -> Path:
        return self.path / "evaluation.json"

    def write_evaluation(self, numbers: dict[str, Any]) -> None:
        """Write the evaluation at the end."""
        self.write_json(self._evaluation, numbers)


def as_written(text: str) -> str:
    """A text as a file of notes has it: tabs, ends of lines, and bytes that are no text, as Python writes them.

    >>> print(as_written("a" + chr(9) + "caf" + chr(0xDCE9)))
    a\\tcaf\\udce9
    """
    plain = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return plain.encode("utf-8", "backslashreplace").decode()


def _line(*fields: str) -> str:
    return "\t".join(map(as_written, fields)) + "\n"


def _append(path: Path, text: str) -> None:
    """Add lines to a file, at once: those of several processes do not mix."""
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


def _lines(path: Path, fields: int) -> list[list[str]]:
    """The lines of a file of notes that have so many fields, which one that a killed process wrote half of may not."""
    try:
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
    except FileNotFoundError:
        return []
    return [parts for line in text.split("\n") if len(parts := line.split("\t", fields - 1)) == fields]


@dataclass(frozen=True)
class PretrainingFolder(PicturesFolder):
    """The folder of a pretraining run: what any run on pictures has, and

        prototypes.png     the pictures nearest to each prototype

    >>> PretrainingFolder(Path("out/photos")).prototypes.as_posix()
    'out/photos/prototypes.png'
    """

    @property
    def prototypes(self) -> Path:
        """The sheet of prototypes."""
        return self.path / "prototypes.png"

    @property
    def _results(self) -> tuple[Path, ...]:
        return (*super()._results, self.prototypes)


@dataclass(frozen=True)
class FinetuningFolder(PicturesFolder):
    """The folder of a fine-tuning: what any run on pictures has, and

        split.json    the numbers of the pictures that are learned from and of those that are tested on

    >>> FinetuningFolder(Path("out/finetune")).split.as_posix()
    'out/finetune/split.json'
    """

    @property
    def split(self) -> Path:
        """The file with the split."""
        return self.path / "split.json"

    @property
    def _results(self) -> tuple[Path, ...]:
        return (*super()._results, self.split)

    def write_split(self, split: LabelSplit) -> None:
        """Write which pictures are learned from and tested on."""
        self.write_json(self.split, split.to_json())

    def read_split(self) -> LabelSplit | None:
        """Which pictures are learned from and tested on; None if it cannot be read."""
        try:
            return LabelSplit.from_json(json.loads(self.split.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
