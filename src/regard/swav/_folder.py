"""The folders of a pretraining run and of a fine-tuning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard.swav._labelled import LabelSplit
from regard.training import RunFolder


@dataclass(frozen=True)
class PicturesFolder(RunFolder):
    """The folder of a run that learns from pictures: what any run has, and

        broken.txt         files that could not be read, and why
        retried.txt        what a server failed to send and was asked for again: how often, and the last error
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
            text = "".join(f"{name}\t{reason}\n" for name, reason in sorted(reasons.items()))
            beside.write_text(text, encoding="utf-8", errors="backslashreplace")

    def write_retried(self, errors: Mapping[str, Sequence[str]]) -> None:
        """Write the names of what was asked for again, how often, and the last error."""
        with replacing(self.retried) as beside:
            text = "".join(f"{name}\t{len(each)}\t{each[-1]}\n" for name, each in sorted(errors.items()))
            beside.write_text(text, encoding="utf-8", errors="backslashreplace")

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
