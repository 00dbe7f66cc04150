"""Checkpoints written by a thread, while training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from regard.training import _checkpoints


class CheckpointWriter:
    """Writes checkpoints of a run in a thread, one at a time; a context that ends when the last one is on the disk.

    The state is copied when `save` is called, which takes as long as copying it in memory; bytes, checksums and the
    disk are the thread's. A checkpoint is whole or absent as ever (`regard.training._checkpoints.save`). An error of
    the disk is raised by the next call of `save` or `wait`, or at the end of the context.

    `place`: the folder of the checkpoints.

    >>> import tempfile
    >>> import torch
    >>> with tempfile.TemporaryDirectory() as folder, CheckpointWriter(Path(folder)) as writer:
    ...     writer.save(3, {"weight": torch.ones(2)}, {"extra": {}}, {"kind": "mine"})
    ...     writer.wait()
    ...     _checkpoints.newest(Path(folder)).step
    3
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, weights: dict[str, Tensor], state: dict[str, Any], config: dict[str, Any]) -> None:
        """Begin to write a checkpoint; waits for the one before it."""
        self.wait()
        copies = (copied(weights), copied(state))
        self._thread = threading.Thread(target=self._write, args=(step, *copies, config), name=f"checkpoint {step}")
        self._thread.start()

    def _write(self, step: int, weights: dict[str, Tensor], state: dict[str, Any], config: dict[str, Any]) -> None:
        try:
            _checkpoints.save(self.place, step, weights, state, config)
        except BaseException as error:  # raised where it is waited for
            self._error = error

    def wait(self) -> None:
        """Wait until nothing is being written; raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.wait()
        elif self._thread is not None:  # what ends the run is more than what this would say
            self._thread.join()


def copied(state: Any) -> Any:
    """A copy on the CPU of nested dictionaries, lists and tuples of tensors and plain values.

    >>> import torch
    >>> x = torch.zeros(2)
    >>> y = copied({"a": [x, 3]})
    >>> _ = x.add_(1)
    >>> y
    {'a': [tensor([0., 0.]), 3]}
    """
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: copied(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state
