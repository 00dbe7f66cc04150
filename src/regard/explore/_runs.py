"""Models that can be opened on the page when none is named: runs of question answering in a folder of outputs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard._problem import Problem
from regard.hub.model_folder import ModelFolder
from regard.training import Checkpoint, latest, read_config
from regard.vqa.store import KIND


def run_of(checkpoint: Path) -> Path:
    """The folder of a run or of a saved model, given as itself or as one of its checkpoints.

    >>> run_of(Path("out/vqa/checkpoints/step-00000200")).as_posix()
    'out/vqa'
    """
    one = Checkpoint.at(checkpoint)
    return checkpoint if one is None else one.run


def is_transformers(folder: Path) -> bool:
    """Whether a folder has a model of Hugging Face: its configuration says of which type.

    >>> is_transformers(Path("nowhere"))
    False
    """
    try:
        return "model_type" in read_config(folder)
    except Problem:
        return False


def answering_runs(folders: Iterable[Path]) -> list[Path]:
    """Those of the folders that have a model that answers, the newest first; not runs without a checkpoint yet.

    >>> answering_runs([Path("nowhere")])
    []
    """
    ages = {folder: age for folder in folders if (age := _written(folder)) is not None}
    return sorted(ages, key=lambda folder: (-ages[folder], folder.as_posix()))


def _written(folder: Path) -> float | None:
    """When the newest weights of a model that answers were written; None if the folder has none."""
    try:
        if read_config(folder).get("kind") != KIND:
            return None
        checkpoint, saved = latest(folder), ModelFolder(folder).weights
        if checkpoint is not None:
            return checkpoint.folder.stat().st_mtime
        return saved.stat().st_mtime if saved.is_file() else None
    except (OSError, Problem):
        return None
