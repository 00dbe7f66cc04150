"""The settings of `fit`: what decides the result, and how and where it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from regard import _plain
from regard._problem import Problem
from regard._ranks import launched
from regard.training._device import DEVICE_HELP, DEVICE_NAMES, check_device_name
from regard.training._setting import setting


def constant(step: int) -> float:
    """The schedule of a constant learning rate.

    >>> constant(100)
    1.0
    """
    return 1.0


@dataclass(frozen=True)
class FitSettings:
    """What decides the result of `fit`.

    `steps`: updates of the weights.
    `batch_size`: samples per forward pass, over all processes.
    `seed`: of all random numbers; default 0.
    `schedule`: from a step, counted from 0, to the factor of the learning rates; default constant 1.
    `accumulate`: batches per update; default 1.
    `clip`: the largest norm of the gradient; default None, not clipped.
    `norm_processes`: processes that share the statistics of batch norms; default 0, all.

    >>> FitSettings(steps=500, batch_size=64).accumulate
    1
    """

    steps: int
    batch_size: int
    seed: int = 0
    schedule: Callable[[int], float] = constant
    accumulate: int = 1
    clip: float | None = None
    norm_processes: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        _plain.count("norm_processes", self.norm_processes, at_least=0)
        for name in ("steps", "batch_size", "accumulate"):
            _plain.count(name, getattr(self, name))
        if self.clip is not None:
            _plain.number("clip", self.clip, above=0)


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


@dataclass(frozen=True)
class Running:
    """How and where a run is computed: devices, precision, log, checkpoints.

    Batches and steps are the same on any number of devices. `device` says of which kind they are, and with a number
    which one; `devices` how many of them. `devices`, `num_nodes`, `strategy` and `precision` are arguments of Lightning
    Fabric, whose accelerator follows from `device`; several processes need `strategy` "ddp".

    >>> Running(devices=2, strategy="ddp", checkpoint_every=50).steps_between_checkpoints
    50
    """

    device: str = setting(DEVICE_HELP, "auto", suggest=DEVICE_NAMES)
    devices: int | str = setting("Number of such devices, or of CPU processes, or auto.", 1, parse=_number_or_name)
    num_nodes: int = setting("Number of machines.", 1, at_least=1)
    strategy: Any = setting(
        "How processes share the work: ddp, or auto for ddp with several devices.",
        "auto",
        parse=str,
        suggest=("auto", "ddp"),
    )
    precision: Any = setting(
        "Arithmetic precision: 32-true, bf16-mixed, or 16-mixed on a GPU.",
        "32-true",
        parse=str,
        suggest=("32-true", "bf16-mixed", "16-mixed"),
    )
    timeout: float = setting(
        "Seconds for which a process waits for the others before it ends, so that torchrun can start all again.", 1800.0
    )
    workers: int = setting("Processes that load data, for each that trains.", 0, at_least=0)
    log: Literal["csv", "tensorboard", "none"] = setting("Format of the log.", "csv")
    log_every: int = setting("Steps between lines of the log.", 10, at_least=1)
    checkpoint_every: int | None = setting(
        "Steps between checkpoints; default 200, in question answering an epoch but at most 500.", None, at_least=1
    )
    progress: bool = setting("Show a line with step, loss and time left.", True)
    resume: bool = setting("Resume the run in the folder, or begin afresh.", True, flags=("--resume/--fresh",))

    def __post_init__(self) -> None:
        """Check the numbers and the name of the device; Lightning checks its own."""
        check_device_name(self.device)
        _plain.count("num_nodes", self.num_nodes)
        _plain.number("timeout", self.timeout, above=0)
        _plain.count("workers", self.workers, at_least=0)
        _plain.count("log_every", self.log_every)
        if self.checkpoint_every is not None:
            _plain.count("checkpoint_every", self.checkpoint_every)
        _plain.choice("log", self.log, ("csv", "tensorboard", "none"))

    @property
    def resumes(self) -> bool:
        """Whether to resume; a Problem if not, where torchrun may start the processes again, which must resume."""
        if not self.resume and launched().may_restart:
            raise Problem(
                "--fresh would begin anew after each restart by torchrun. Remove the folder, then run without."
            )
        return self.resume

    @property
    def steps_between_checkpoints(self) -> int:
        """`checkpoint_every`, default 200."""
        return 200 if self.checkpoint_every is None else self.checkpoint_every
