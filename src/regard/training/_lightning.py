"""Lightning's side of `fit`: the Trainer, and the module, the data and the callback it is given.

The only module that imports Lightning, which is slow; it is imported itself when a run begins.
"""

from __future__ import annotations

import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from regard._problem import Problem
from regard.training import _checkpoints
from regard.training._fit import Task
from regard.training._log import Kind, Log, NoLog, Progress, open_log
from regard.training._norm import synchronise_norms
from regard.training._order import Batches, Order
from regard.training._random import mix


@dataclass(frozen=True)
class Plan:
    """What `fit` was asked for, and the step it begins after."""

    start: int
    steps: int
    batch_size: int
    accumulate: int
    seed: int
    schedule: Callable[[int], float]
    out: Path
    checkpoint_every: int
    log: Kind
    log_every: int
    workers: int
    after_step: Callable[[int], None] | None
    on_log: Callable[[int, dict[str, float]], None] | None
    progress: bool


class Adapter(lightning.LightningModule):
    """A task as a LightningModule."""

    def __init__(self, task: Task, plan: Plan) -> None:
        super().__init__()
        self.task, self.plan = task, plan
        self.numbers: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """Updates done, also before this process."""
        return self.plan.start + int(self.trainer.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The task's."""
        optimizer = self.task.optimizer()
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
        return optimizer

    def training_step(self, batch: Any, number: int) -> Tensor:
        """The loss; its numbers are kept for the callback."""
        loss, self.numbers = self.task.loss(batch)
        self.numbers = {"loss": loss.detach(), **self.numbers}
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the task see its gradients; set the learning rate."""
        self.task.before_update(self.step)
        factor = self.plan.schedule(self.step)
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * factor


class _Numbers(Sampler[tuple[int, list[int]]]):
    def __init__(self, order: Order, first: int, last: int) -> None:
        self.order, self.first, self.last = order, first, last

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return self.order.between(self.first, self.last)

    def __len__(self) -> int:
        return self.last - self.first


class _Fetch(Dataset[Any]):
    def __init__(self, data: Batches) -> None:
        self.data = data

    def __getitem__(self, item: tuple[int, list[int]]) -> Any:
        epoch, indices = item
        return self.data.batch(indices, epoch)


class Stream(lightning.LightningDataModule):
    """All batches that are left, as one long epoch, so that there is no place in an epoch to be lost."""

    def __init__(self, data: Batches, plan: Plan) -> None:
        super().__init__()
        self.data, self.plan = data, plan

    def train_dataloader(self) -> DataLoader[Any]:
        """This process's part of each batch."""
        plan, trainer = self.plan, self.trainer
        assert trainer is not None
        order = Order(len(self.data), plan.batch_size, plan.seed, trainer.global_rank, trainer.world_size)
        numbers = _Numbers(order, plan.start * plan.accumulate, plan.steps * plan.accumulate)
        return DataLoader(
            _Fetch(self.data),
            batch_size=None,
            sampler=numbers,
            num_workers=plan.workers,
            persistent_workers=plan.workers > 0,
            # Its own generator: the loader must not draw from the one that dropout draws from.
            generator=torch.Generator().manual_seed(0),
        )


class Runner(lightning.Callback):
    """Restores, seeds, logs, saves."""

    def __init__(self, plan: Plan, state: dict[str, Any]) -> None:
        self.plan, self.state = plan, state
        self.seconds = self.per_second = 0.0
        self._log: Log = NoLog()
        self._done = 0

    def setup(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        """Before the model is handed to the devices."""
        if trainer.world_size > 1:
            synchronise_norms(module)

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Give the optimiser its state back."""
        if self.state:
            trainer.optimizers[0].load_state_dict(self.state["optimizer"])
            trainer.precision_plugin.load_state_dict(self.state["precision"])
        if trainer.is_global_zero:
            if not self.plan.start:  # a fresh start: what an older run left is not to be resumed from
                shutil.rmtree(self.plan.out / "checkpoints", ignore_errors=True)
            self._log = open_log(self.plan.log, self.plan.out, self.plan.start)
        self._progress = Progress(self.plan.start, self.plan.steps, self.plan.progress and trainer.is_global_zero)
        self._began = time.monotonic()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed torch: dropout is a function of the seed and the number of the batch, in each process its own."""
        number = self.plan.start * self.plan.accumulate + batch_idx
        torch.manual_seed(mix(self.plan.seed, number, trainer.global_rank))

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After each batch; most of it after each update."""
        if (batch_idx + 1) % self.plan.accumulate:
            return
        assert isinstance(module, Adapter)
        step, plan = module.step, self.plan
        module.task.after_update(step - 1)
        self._done += 1
        self.seconds = time.monotonic() - self._began
        self.per_second = self._done * plan.batch_size * plan.accumulate / self.seconds
        if step % plan.log_every == 0 or step == plan.steps or step == plan.start + 1:
            self._write(trainer, module, step)
        if plan.after_step is not None:
            plan.after_step(step)
        if step % plan.checkpoint_every == 0 or step == plan.steps:
            self._save(trainer, module, step)

    def _write(self, trainer: lightning.Trainer, module: Adapter, step: int) -> None:
        found: dict[str, Any] = {}
        for name, value in module.numbers.items():
            # A function gives several numbers; it is only called when they are written, in every process.
            found |= value() if callable(value) else {name: value}
        values = {name: float(value) for name, value in found.items() if not isinstance(value, list)}
        lists = {name: value for name, value in found.items() if isinstance(value, list)}
        # Lists can be long: about a hundred times in a run.
        every = max(1, self.plan.steps // 100)
        if step < self.plan.steps and step // every == (step - self.plan.log_every) // every:
            lists = {}
        values["lr"] = float(trainer.optimizers[0].param_groups[0]["lr"])
        values["samples_per_second"] = self.per_second
        if trainer.is_global_zero:
            self._log.write(step, values, lists)
            self._progress.show(step, values, self.per_second)
            if self.plan.on_log is not None:
                self.plan.on_log(step, values)

    def _save(self, trainer: lightning.Trainer, module: Adapter, step: int) -> None:
        state = {
            "extra": module.task.extra_state(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
        }
        if trainer.is_global_zero:
            _checkpoints.save(self.plan.out, step, module.task.state_dict(), state, module.task.config)
        trainer.strategy.barrier()

    def teardown(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        """Close the log."""
        self._log.close()


def train(task: Task, data: Batches, plan: Plan, state: dict[str, Any], **options: Any) -> Runner:
    """Train what is left of a plan; `state` is the optimiser's, and `options` are more of the Trainer's."""
    runner = Runner(plan, state)
    with _quiet():
        trainer = _trainer(
            max_steps=plan.steps - plan.start,
            max_epochs=-1,
            accumulate_grad_batches=plan.accumulate,
            callbacks=[runner],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            **options,
        )
        if plan.start < plan.steps:
            trainer.fit(Adapter(task, plan), datamodule=Stream(data, plan))
    return runner


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Lightning has to say about itself."""
    talk = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in talk]
    for logger in talk:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Advice about loader workers and the like: order and number of workers are decided here.
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(talk, levels, strict=True):
            logger.setLevel(level)


def _trainer(**options: Any) -> lightning.Trainer:
    """Lightning's Trainer; what it has against its options is said in one line."""
    try:
        # Lightning would only warn of half precision on a CPU, and take bf16-mixed.
        warnings.filterwarnings("error", message=".*fp16 is not supported on CPU")
        return lightning.Trainer(**options)
    except UserWarning as error:
        raise Problem("precision 16-mixed needs a GPU, and this runs on a CPU. Take bf16-mixed or 32-true.") from error
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise Problem(f"Lightning cannot train so: {' '.join(str(error).split())}") from error
