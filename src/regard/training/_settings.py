"""The settings of `fit`: what is computed, and how and where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from regard import _check
from regard.training._setting import setting


def constant(step: int) -> float:
    """The schedule that leaves the learning rates as they are.

    >>> constant(100)
    1.0
    """
    return 1.0


@dataclass(frozen=True)
class FitSettings:
    """What `fit` computes.

    steps: updates of the weights.
    batch_size: samples of a forward pass, over all processes.
    seed: decides all that is random.
    schedule: the factor of the learning rates at a step, counted from 0.
    accumulate: batches of one update.
    clip: the largest norm of the gradient; default None, as it is.

    >>> FitSettings(steps=500, batch_size=64).accumulate
    1
    """

    steps: int
    batch_size: int
    seed: int = 0
    schedule: Callable[[int], float] = constant
    accumulate: int = 1
    clip: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("steps", "batch_size", "accumulate"):
            _check.count(name, getattr(self, name))
        if self.clip is not None:
            _check.number("clip", self.clip, above=0)


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


@dataclass(frozen=True)
class Running:
    """How and where a run is computed: devices, what is written down and how often.

    A batch and the steps are the same on any number of devices. `devices`, `num_nodes`, `accelerator`, `strategy` and
    `precision` are those of Lightning Fabric, which is asked for what it has: several processes need `strategy` "ddp".

    >>> Running(devices=2, strategy="ddp", checkpoint_every=50).steps_between_checkpoints
    50
    """

    devices: int | str = setting("How many devices or CPU processes, or auto.", 1, parse=_number_or_name)
    num_nodes: int = setting("How many machines.", 1, at_least=1)
    accelerator: str = setting("What to compute on: cpu, gpu, mps, or auto for the best there is.", "auto")
    strategy: Any = setting(
        "How processes share the work: ddp, or auto for ddp with several devices.", "auto", parse=str
    )
    precision: Any = setting("Of the arithmetic: 32-true, bf16-mixed, or 16-mixed on a GPU.", "32-true", parse=str)
    workers: int = setting("Processes that load data, beside each that trains.", 0, at_least=0)
    log: Literal["csv", "tensorboard", "none"] = setting("Where the numbers of the run are written.", "csv")
    log_every: int = setting("Steps between lines of the log.", 10, at_least=1)
    checkpoint_every: int | None = setting(
        "Steps between checkpoints; unless given 200, in question answering an epoch but at most 500.", None, at_least=1
    )
    progress: bool = setting("Show the step, the loss and the time left.", True)
    resume: bool = setting("Resume a run that is in the folder, or begin afresh.", True, flags=("--resume/--fresh",))

    def __post_init__(self) -> None:
        """Check the numbers; Lightning checks its own."""
        _check.count("num_nodes", self.num_nodes)
        _check.count("workers", self.workers, at_least=0)
        _check.count("log_every", self.log_every)
        if self.checkpoint_every is not None:
            _check.count("checkpoint_every", self.checkpoint_every)
        _check.choice("log", self.log, ("csv", "tensorboard", "none"))

    @property
    def steps_between_checkpoints(self) -> int:
        """`checkpoint_every`, default 200."""
        return 200 if self.checkpoint_every is None else self.checkpoint_every
