"""The folder of a pretraining run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard.training import RunFolder


@dataclass(frozen=True)
class PretrainingFolder(RunFolder):
    """The folder of a pretraining run: what any run has, and

        broken.txt         files that could not be read, and why
        evaluation.json    the evaluation at the end, if pictures have labels
        prototypes.png     the pictures nearest to each prototype

    >>> PretrainingFolder(Path("out/photos")).prototypes.as_posix()
    'out/photos/prototypes.png'
    """

    @property
    def broken(self) -> Path:
        """The list of files that could not be read."""
        return self.path / "broken.txt"

    @property
    def prototypes(self) -> Path:
        """The sheet of prototypes."""
        return self.path / "prototypes.png"

    def write_broken(self, reasons: Mapping[str, str]) -> None:
        """Write the names of files that could not be read, each with the reason."""
        with replacing(self.broken) as beside:
            text = "".join(f"{name}\t{reason}\n" for name, reason in sorted(reasons.items()))
            beside.write_text(text, encoding="utf-8", errors="backslashreplace")

    def begin_afresh(self) -> None:
        """Remove an older run: what it could be resumed from, and its results, which would pass for the new ones."""
        super().begin_afresh()
        shutil.rmtree(self.backbone, ignore_errors=True)
        for file in (self.broken, self.prototypes, self._evaluation):
            file.unlink(missing_ok=True)

    @property
    def _evaluation(self) -> Path:
        return self.path / "evaluation.json"

    def write_evaluation(self, numbers: dict[str, Any]) -> None:
        """Write the evaluation at the end."""
        self.write_json(self._evaluation, numbers)
