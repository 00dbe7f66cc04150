"""Checkpoints: a folder for each, written beside its place, renamed when it is whole, and checked when it is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem
from regard.hub.model_folder import CONFIG, FORMAT, WEIGHTS

STATE, SUMS = "state.pt", "sums.json"
STEP_PREFIX = "step-"  # of the name of a checkpoint's folder
KEPT = 2  # the newest, and one in case that is damaged


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: its `folder` and the `step` after which it was written.

    >>> Checkpoint(Path("out/run/checkpoints/step-00000200"), 200).step
    200
    """

    folder: Path
    step: int

    @classmethod
    def at(cls, folder: Path) -> Checkpoint | None:
        """The checkpoint in a folder; None if it is not one by its name and its config."""
        number = folder.name.removeprefix(STEP_PREFIX)
        if not folder.name.startswith(STEP_PREFIX) or not number.isdigit():
            return None
        return cls(folder, int(number))

    @property
    def run(self) -> Path:
        """The folder of the run that it is of."""
        return self.folder.parent.parent

    @property
    def config(self) -> dict[str, Any]:
        """What was trained, as `Task.config` said."""
        from regard.training._folder import read_config

        return read_config(self.folder)

    def weights(self) -> dict[str, Tensor]:
        """The weights, after checking that the file is what was written."""
        from safetensors.torch import load

        return load(self._bytes(WEIGHTS))

    def state(self) -> dict[str, Any]:
        """The state of the optimiser and of the task."""
        import io

        state: dict[str, Any] = torch.load(io.BytesIO(self._bytes(STATE)), map_location="cpu", weights_only=True)
        return state

    def _bytes(self, name: str) -> bytes:
        remedy = f"Remove {self.folder} to go on from an earlier one, or start afresh in another folder."
        try:
            content = (self.folder / name).read_bytes()
            expected = json.loads((self.folder / SUMS).read_text())[name]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"the checkpoint {self.folder} is not whole ({error}). {remedy}") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise Problem(f"the checkpoint {self.folder} is corrupt: {name} is not what was written. {remedy}")
        return content


def save(
    place: Path, step: int, weights: dict[str, Tensor], state: dict[str, Any], config: dict[str, Any]
) -> Checkpoint:
    """Write the checkpoint of a step into `place`, and then remove older ones; the one before stays as a reserve."""
    from safetensors.torch import save_file

    folder, beside = place / f"{STEP_PREFIX}{step:08d}", place / f".{STEP_PREFIX}{step:08d}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    save_file({name: t.detach().cpu().contiguous() for name, t in weights.items()}, beside / WEIGHTS)
    torch.save(state, beside / STATE)
    (beside / CONFIG).write_text(json.dumps({"format": FORMAT, **config}, indent=2) + "\n")
    names = (WEIGHTS, STATE)
    (beside / SUMS).write_text(json.dumps({n: hashlib.sha256((beside / n).read_bytes()).hexdigest() for n in names}))
    for name in (*names, CONFIG, SUMS):
        _sync(beside / name)
    _sync(beside)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    _sync(place)
    for old in sorted(place.glob(f"{STEP_PREFIX}*"))[:-KEPT] + list(place.glob(f".{STEP_PREFIX}*.tmp")):
        shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(folder, step)


def newest(place: Path) -> Checkpoint | None:
    """The newest whole checkpoint in a folder of them, or None.

    >>> newest(Path("nowhere")) is None
    True
    """
    folders = sorted(place.glob(f"{STEP_PREFIX}*"))
    return Checkpoint.at(folders[-1]) if folders else None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
