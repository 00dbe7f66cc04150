"""Lightning Fabric as the options of a run ask for it, and as a launcher says. The only file that imports Lightning."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from lightning.fabric import Fabric as Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning

from regard._problem import Problem
from regard._ranks import launched
from regard.training._device import choose_device
from regard.training._settings import Running

_USABLE = ("cuda", "mps", "cpu")  # what Lightning has an accelerator for


def make_fabric(running: Running, *, needs_float64: bool = False) -> Fabric:
    """Fabric with these options; a Problem of one line if it refuses them.

    `running`: devices, machines, strategy, precision, timeout.
    `needs_float64`: whether to leave devices that have none to those who name them; default False.
    """
    running = as_launched(running)
    accelerator, devices = _placed(running, needs_float64)
    try:
        with quiet():
            warnings.filterwarnings("ignore", message=".*fp16 is not supported on CPU")  # refused below
            fabric = Fabric(
                accelerator=accelerator,
                strategy=_strategy(running),
                devices=devices,
                num_nodes=running.num_nodes,
                precision=running.precision,
            )
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise Problem(f"Lightning cannot train so: {' '.join(str(error).split())}") from error
    if running.precision == "16-mixed" and fabric.device.type == "cpu":  # Fabric only warns, and uses bf16-mixed
        raise Problem("precision 16-mixed needs a GPU, and this runs on a CPU. Take bf16-mixed or 32-true.")
    if not isinstance(fabric.strategy, SingleDeviceStrategy | DDPStrategy):
        raise Problem(f"strategy {running.strategy} shares the weights out, and checkpoints hold them whole. Take ddp.")
    return fabric


def _placed(running: Running, needs_float64: bool) -> tuple[str, int | str | list[int]]:
    """Lightning's accelerator and devices."""
    device = choose_device(running.device, kinds=_USABLE, needs_float64=needs_float64, use="training")
    if device.index is None:
        return device.type, running.devices
    if running.devices not in (1, "auto"):
        kind = device.type
        raise Problem(f"device {device} is one, and devices is {running.devices}. Take device {kind}, or one device.")
    return device.type, [device.index]


def as_launched(running: Running) -> Running:
    """The options with the devices and machines that torchrun has started processes for; a Problem if others are named.

    >>> as_launched(Running(devices=2)).devices
    2
    """
    ranks = launched()
    if ranks.size == 1:
        return running
    for name, given, started in (
        ("devices", running.devices, ranks.local_size),
        ("num_nodes", running.num_nodes, ranks.machines),
    ):
        if given not in (1, started, "auto"):
            option = name.replace("_", "-")
            raise Problem(f"--{option} is {given}, and torchrun has started {started}. Leave --{option} out.")
    return replace(running, devices=ranks.local_size, num_nodes=ranks.machines)


def _strategy(running: Running) -> str | DDPStrategy:
    """What Fabric takes as strategy: with several processes one that gives the others up after `running.timeout`."""
    several = running.num_nodes > 1 or (isinstance(running.devices, int) and running.devices > 1)
    if running.strategy == "ddp" or (running.strategy == "auto" and several):
        # Else DDP groups gradients in another order from the second step on, and with it the rounding of their sums: a
        # run that is resumed would be another from the third process on.
        return DDPStrategy(timeout=timedelta(seconds=running.timeout), find_unused_parameters=True)
    strategy: str = running.strategy
    return strategy


def launch(fabric: Fabric, running: Running) -> None:
    """Start the other processes of this machine, if there are any and a launcher such as torchrun has not."""
    if running.strategy in ("ddp_spawn", "ddp_fork", "ddp_notebook"):
        raise Problem(f"strategy {running.strategy} trains a copy of the model. Take ddp, in a script.")
    fabric.launch()


@contextmanager
def steps_are_quiet() -> Iterator[None]:
    """Without DDP's advice not to look for unused parameters (`_strategy` says why)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        yield


def end_children(fabric: Fabric) -> None:
    """Kill the processes that Fabric started: they would wait for this one for ever."""
    for process in getattr(fabric.strategy.launcher, "procs", ()):
        process.kill()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log messages and warnings of Lightning."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]  # Fabric uses both
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
