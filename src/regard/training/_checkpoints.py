"""Checkpoints: a folder each, written under a temporary name, renamed when complete, verified when read."""

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

from regard._files import temporary_beside
from regard._problem import Problem
from regard.hub.model_folder import CONFIG, FORMAT, WEIGHTS

STATE, SUMS = "state.pt", "sums.json"
STEP_PREFIX = "step-"  # of the name of a checkpoint's folder
KEPT = 2  # checkpoints on disk: the newest, and one in case that is damaged


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
        """The checkpoint in a folder; None if the folder's name is not that of a checkpoint."""
        number = folder.name.removeprefix(STEP_PREFIX)
        if not folder.name.startswith(STEP_PREFIX) or not number.isdigit():
            return None
        return cls(folder, int(number))

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return self.folder.parent.parent

    @property
    def config(self) -> dict[str, Any]:
        """The `Task.config` of what was trained."""
        from regard.training._folder import read_config

        return read_config(self.folder)

    def weights(self) -> dict[str, Tensor]:
        """The weights; a Problem if the file is missing or does not match its checksum."""
        from safetensors.torch import load

        return load(self._bytes(WEIGHTS))

    def state(self) -> dict[str, Any]:
        """The state of the optimiser and of the task; a Problem as for `weights`."""
        import io

        state: dict[str, Any] = torch.load(io.BytesIO(self._bytes(STATE)), map_location="cpu", weights_only=True)
        return state

    def _bytes(self, name: str) -> bytes:
        """The content of a file, verified by its checksum."""
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
    """Write a checkpoint, complete or not at all, then remove all older ones but one.

    `place`: the folder of the checkpoints.
    `step`: steps done.
    `weights`: for model.safetensors.
    `state`: of the optimiser and the task, for state.pt.
    `config`: for config.json.
    """
    folder = place / f"{STEP_PREFIX}{step:08d}"
    temporary = temporary_beside(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        sums = {}
        for name, content in ((WEIGHTS, _weights_file(weights)), (STATE, _state_file(state))):
            (temporary / name).write_bytes(content)
            sums[name] = hashlib.sha256(content).hexdigest()
        (temporary / CONFIG).write_text(json.dumps({"format": FORMAT, **config}, indent=2) + "\n")
        (temporary / SUMS).write_text(json.dumps(sums))
        for name in (WEIGHTS, STATE, CONFIG, SUMS):
            _sync(temporary / name)
        _sync(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        _sync(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in sorted(place.glob(f"{STEP_PREFIX}*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(folder, step)


def _weights_file(weights: dict[str, Tensor]) -> bytes:
    """model.safetensors. As bytes, like the state: writing them raises what any file does, such as on a full disk."""
    from safetensors.torch import save as as_bytes

    return as_bytes({name: t.detach().cpu().contiguous() for name, t in weights.items()})


def _state_file(state: dict[str, Any]) -> bytes:
    """state.pt."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def newest(place: Path) -> Checkpoint | None:
    """The newest complete checkpoint in a folder of checkpoints, or None.

    >>> newest(Path("nowhere")) is None
    True
    """
    folders = sorted(place.glob(f"{STEP_PREFIX}*"))
    return Checkpoint.at(folders[-1]) if folders else None


def _sync(path: Path) -> None:
    """Wait until a file or folder is on disk (fsync)."""
    if os.name == "nt" and path.is_dir():  # which cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
