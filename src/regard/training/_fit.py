"""`fit`: a task and its data, from the last checkpoint to the last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard.training._checkpoints import Checkpoint
from regard.training._folder import RunFolder
from regard.training._journal import FitCall
from regard.training._order import Batches
from regard.training._settings import FitSettings, Running


class Task(nn.Module):
    """What is trained. Subclasses define `config`, `loss` and `optimizer`; the other methods are optional.

    >>> class Line(Task):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.config, self.layer = {"kind": "line"}, nn.Linear(1, 1)
    ...     def loss(self, batch):
    ...         return (self.layer(batch) - 2 * batch).square().mean(), {}
    ...     def optimizer(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> Line().loss(torch.ones(4, 1))[0].shape
    torch.Size([])
    """

    config: dict[str, Any]  # {"kind": ..., ...}: written to config.json, and compared before a run is resumed
    needs_float64: bool = False  # continuous attention does: MPS, which has none, is then left to those who name it

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """The loss of a batch, and for the log numbers, lists of numbers, or functions that return a dict of these."""
        raise NotImplementedError

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser, each group with its full learning rate; `fit` multiplies it by the schedule."""
        raise NotImplementedError

    def before_training(self, samples: int, batches: Callable[[], Iterator[Any]]) -> None:
        """Called in every process before the first step of a run, not of a resumed one.

        `samples`: in the data.
        `batches`: returns this process's batches of the first epoch, on the device of the task.
        """

    def before_update(self, step: int) -> None:
        """Called with the number of the step, from 0, between the backward pass and the update."""

    def after_update(self, step: int) -> None:
        """Called with the number of the step after the update."""

    def extra_state(self) -> dict[str, Any]:
        """State besides the weights that a resumed run needs; called in every process. Tensors, numbers, lists."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore that state; called in every process."""


@dataclass(frozen=True)
class Fitted:
    """Summary of a call of `fit`: its `steps`, the step it `resumed` from, its `seconds`, samples per second.

    >>> Fitted(steps=100, resumed=40, seconds=1.5, samples_per_second=2560.0).resumed
    40
    """

    steps: int
    resumed: int
    seconds: float
    samples_per_second: float


def fit(
    task: Task,
    data: Batches,
    settings: FitSettings,
    *,
    out: Path | str,
    running: Running | None = None,
    after_step: Callable[[int], None] | None = None,
    on_log: Callable[[int, dict[str, float]], None] | None = None,
) -> Fitted:
    """Train `task` in place up to `settings.steps` updates, from the newest checkpoint in `out`; rerun to resume.

    A checkpoint is written every `running.checkpoint_every` steps and at the end. The first ctrl-c or SIGTERM ends the
    run after the current step with a checkpoint, and raises `KeyboardInterrupt`; the second ends the process. While it
    runs, no other process can write to `out`. With several processes batch norms are synchronised.

    `task`: what is trained.
    `data`: what it is trained on.
    `settings`: what decides the result: steps, batch, seed, schedule, accumulation, clipping.
    `out`: the folder of the run.
    `running`: devices, precision, log, checkpoints, whether to resume; default `Running()`.
    `after_step`: called in every process with the number of steps done, before the checkpoint is written.
    `on_log`: called in the first process with the step and its numbers, when they are logged.

    >>> import tempfile
    >>> class Line(Task):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.config, self.layer = {"kind": "line"}, nn.Linear(1, 1)
    ...     def loss(self, batch):
    ...         return (self.layer(batch) - 2 * batch).square().mean(), {}
    ...     def optimizer(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> class Data:
    ...     def __len__(self):
    ...         return 8
    ...     def batch(self, indices, epoch):
    ...         return torch.tensor(indices).unsqueeze(1) / 8
    >>> with tempfile.TemporaryDirectory() as out:
    ...     quiet = Running(progress=False, log="none")
    ...     fit(Line(), Data(), FitSettings(steps=3, batch_size=4), out=out, running=quiet).steps
    3
    """
    running = running or Running()
    folder, steps = RunFolder(Path(out)), settings.steps
    from regard.training._loop import run_loop  # slow to import, so only here

    with writing_to(folder.path), disk_in_words(folder.path, folder.kept):
        checkpoint = folder.latest() if running.resumes else None
        start, state = 0, {}
        if checkpoint is not None:
            start, state = checkpoint.step, restore(task, checkpoint)
            if start > steps:
                raise Problem(
                    f"{folder.path} was trained for {start} steps already, more than {steps}. Ask for more, "
                    "choose another folder (--out), or start over: --fresh"
                )
        call = FitCall(start, settings, running, folder, after_step, on_log)
        seconds, per_second = run_loop(task, data, call, state)
    return Fitted(steps - start, start, seconds, per_second)


def restore(task: Task, checkpoint: Checkpoint) -> dict[str, Any]:
    """Load a checkpoint's weights and extra state into a task; return its whole state, with that of the optimiser."""
    difference = _difference(task.config, checkpoint.config)
    if difference:
        raise Problem(
            f"{checkpoint.folder} is of another run: {difference}. Take the same settings, choose another "
            "folder (--out), or start over: --fresh"
        )
    weights, state = checkpoint.weights(), checkpoint.state()
    expected = task.state_dict()
    if wrong := expected.keys() ^ weights.keys() or {n for n in expected if expected[n].shape != weights[n].shape}:
        raise Problem(f"{checkpoint.folder} is of another model: {min(wrong)} differs. Choose another folder.")
    task.load_state_dict(weights)
    task.load_extra_state(state["extra"])
    return state


def _difference(mine: Any, theirs: Any, path: str = "") -> str:
    """The first difference of two configs, in words; "" if there is none. Tuples equal lists, as in JSON."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in sorted({*mine, *theirs}, key=str):
            difference = _difference(mine.get(key), theirs.get(key), f"{path}.{key}" if path else str(key))
            if difference:
                return difference
        return ""
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(mine) == len(theirs):
        return next((d for a, b in zip(mine, theirs, strict=True) if (d := _difference(a, b, path))), "")
    return "" if mine == theirs else f"{path} is {theirs!r} there and {mine!r} here"
