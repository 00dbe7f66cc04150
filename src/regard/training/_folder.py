"""The folder of a run: the names of its files, and how each is written and read."""

from __future__ import annotations

import csv
import json
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.backbones._files import BACKBONE_FOLDER
from regard.hub.model_folder import CONFIG, FORMAT, check_format
from regard.training import _checkpoints
from regard.training._checkpoints import Checkpoint
from regard.training._data import DataDescription


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run. All files in it are written and read by this class or a derived one.

        config.json     what is trained, with the version of the format
        log.csv         the numbers of every logged step; a list of numbers is in its own table, NAME.csv
        tensorboard/    in place of both, if the log is TensorBoard's
        checkpoints/    the newest checkpoints
        backbone/       the backbone that was trained, or that made the features
        data.json       what it is trained on: in words, and as a digest
        steps           the number of steps of the whole run, for showing progress
        events.txt      of several processes: when they began, from which step, and what ended one of them
        done            written when the run has ended: its seconds
        .lock           while a process writes: which

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = RunFolder(Path(folder))
    ...     run.write_config({"kind": "mine"})
    ...     run.read_config(), run.share(), run.latest()
    ({'kind': 'mine'}, 0.0, None)
    """

    path: Path

    def __post_init__(self) -> None:
        """Convert text to a path."""
        object.__setattr__(self, "path", Path(self.path))

    @property
    def config(self) -> Path:
        """The file with the config of what is trained."""
        return self.path / "config.json"

    @property
    def log(self) -> Path:
        """The CSV file of the run's log."""
        return self.path / "log.csv"

    def table(self, name: str) -> Path:
        """The CSV file of a list of numbers in the log."""
        return self.path / f"{name}.csv"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's log."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def backbone(self) -> Path:
        """The folder of the backbone."""
        return self.path / BACKBONE_FOLDER

    @property
    def has_backbone(self) -> bool:
        """Whether the folder has a backbone."""
        return (self.backbone / CONFIG).is_file()

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the config of what is trained, with the version of the format."""
        self.write_json(self.config, {"format": FORMAT, **config})

    def read_config(self) -> dict[str, Any]:
        """The config, without the version; a Problem if there is none, or it is of a later version."""
        try:
            config = json.loads(self.config.read_text())
        except (OSError, ValueError) as error:
            why = f"has no readable {self.config.name} ({error})"
            raise Problem(f"{self.path} {why}. Name the folder of a run or a model.") from error
        if not isinstance(config, dict):
            raise Problem(f"{self.config} is not a config. Name the folder of a run or a model.")
        check_format(config, self.config)
        return {name: value for name, value in config.items() if name != "format"}

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None; what a killed process left incomplete is ignored."""
        return _checkpoints.newest(self.checkpoints)

    def network_bytes(self) -> int:
        """The size of the backbone and the checkpoints that are there."""
        files = (path for place in (self.backbone, self.checkpoints) for path in place.rglob("*"))
        return sum(path.stat().st_size for path in files if path.is_file())

    @property
    def events(self) -> Path:
        """The file with what happened to the processes of a run."""
        return self.path / "events.txt"

    def note_event(self, text: str) -> None:
        """Add a line to the events, with the time and the name of this machine; from any process."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {socket.gethostname()}: {text}\n"
        with self.events.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)  # at once: lines of several processes do not mix

    def kept(self) -> str:
        """A sentence on the newest checkpoint, for messages; empty if there is none."""
        checkpoint = self.latest()
        return "" if checkpoint is None else f"Step {checkpoint.step} is kept."

    def begin_afresh(self) -> None:
        """Remove the state from which an older run could be resumed."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self._done.unlink(missing_ok=True)

    def read_data(self) -> DataDescription | None:
        """What the run is trained on; None if unknown, as for older runs."""
        try:
            return DataDescription.from_json(json.loads(self._data.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def is_begun(self) -> bool:
        """Whether the folder has a run that can be resumed, or one that has ended."""
        return self.is_done or self.latest() is not None

    def check_data(self, data: DataDescription) -> None:
        """Raise a Problem that names both, if the folder has a run that is trained on other data."""
        written = self.read_data()
        if self.is_begun and written is not None and written != data:
            raise Problem(
                f"{self.path} has a run trained on {written}, and this is {data}. Choose another folder (--out), or "
                "start over: --fresh"
            )

    def write_data(self, data: DataDescription) -> None:
        """Write what the run is trained on."""
        self.write_json(self._data, data.to_json())

    def write_steps(self, steps: int) -> None:
        """Write the number of steps of the whole run."""
        with replacing(self._steps) as beside:
            beside.write_text(f"{steps}\n")

    def write_done(self, seconds: float) -> None:
        """Mark the run as ended."""
        with replacing(self._done) as beside:
            beside.write_text(f"{seconds:.1f}\n")

    def read_done(self) -> float | None:
        """The seconds that the run took; None if it has not ended."""
        try:
            return float(self._done.read_text())
        except (OSError, ValueError):
            return None

    @property
    def is_done(self) -> bool:
        """Whether the run has ended."""
        return self._done.is_file()

    def share(self) -> float:
        """The share of the run that is done, between 0 and 1, by its CSV log."""
        if self.is_done:
            return 1.0
        try:
            with self.log.open(newline="") as file:
                rows = list(csv.DictReader(file))
            return min(1.0, int(rows[-1]["step"]) / int(self._steps.read_text()))
        except (OSError, IndexError, KeyError, ValueError):
            return 0.0

    @staticmethod
    def write_json(file: Path, content: Any) -> None:
        """Write a JSON file, completely or not at all."""
        with replacing(file) as beside:
            # Half of a surrogate pair stands for a byte of a name that is not UTF-8; it is written as JSON escapes it.
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            beside.write_text(text, encoding="utf-8", errors="backslashreplace")

    @property
    def _data(self) -> Path:
        return self.path / "data.json"

    @property
    def _steps(self) -> Path:
        return self.path / "steps"

    @property
    def _done(self) -> Path:
        return self.path / "done"


def latest(out: Path | str) -> Checkpoint | None:
    """The newest complete checkpoint of a run, or None; what a killed process left incomplete is ignored.

    >>> latest("nowhere") is None
    True
    """
    return RunFolder(Path(out)).latest()


def read_config(folder: Path | str) -> dict[str, Any]:
    """The config.json of a run or a model, without its version; a `Problem` if it cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RunFolder(Path(folder)).write_config({"kind": "mine"})
    ...     read_config(folder)
    {'kind': 'mine'}
    """
    return RunFolder(Path(folder)).read_config()
