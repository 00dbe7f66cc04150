"""The training loop of `fit`, on Lightning Fabric.

Fabric starts the processes, moves tensors, averages gradients and scales losses: what differs between one CPU, eight
GPUs and 64 machines. The order of the samples, the log, the checkpoints and the progress are this package's, so
Lightning's Trainer would be used with its own switched off, and its loop be spread over callbacks. The Trainer also
turns ctrl-c into `sys.exit(1)` and ignores further ones; here it and SIGTERM end the run after the current step, with a
checkpoint (`regard._stop`).

It imports Lightning, which is slow; `fit` imports it when a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from regard._problem import Problem
from regard._ranks import launched
from regard._stop import Stop
from regard.training._checkpoint_writer import CheckpointWriter
from regard.training._fabric import Fabric, end_children, launch, make_fabric, quiet, steps_are_quiet
from regard.training._fit import Task
from regard.training._journal import FitCall, Journal
from regard.training._loaded import Loaded, outlive_signals
from regard.training._norm import synchronise_norms
from regard.training._order import Batches, Order
from regard.training._random import mix
from regard.training._settings import FitSettings

_AGREE = 10  # steps after which several processes ask each other whether one got a signal


def run_loop(task: Task, data: Batches, call: FitCall, state: dict[str, Any]) -> tuple[float, float]:
    """Train the remaining steps of a call; return the seconds, and the samples per second.

    `task`: trained in place; on the CPU afterwards.
    `data`: what it is trained on.
    `call`: settings, folder, callbacks.
    `state`: that of the checkpoint to resume from; empty for a fresh start.
    """
    settings, running, steps = call.settings, call.running, call.settings.steps
    fabric = make_fabric(running, needs_float64=task.needs_float64)
    if call.start == steps:
        return 0.0, 0.0
    with quiet():
        launch(fabric, running)
        _agree_on_start(fabric, call)
        if fabric.world_size > 1:
            synchronise_norms(task, settings.norm_processes)
        optimizer = task.optimizer()
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
        losses = _Loss(task)
        module, stepper = fabric.setup(losses, optimizer)
    precision = fabric.strategy.precision
    if state:
        optimizer.load_state_dict(state["optimizer"])
        precision.load_state_dict(state["precision"])
    with Loaded(_loader(data, call, fabric)) as batches:
        if not call.start:
            _begin(task, data, call, fabric)
        number = call.start * settings.accumulate
        journal = Journal(call, fabric.is_global_zero, fabric.world_size > 1)
        writer = CheckpointWriter(call.folder.checkpoints)
        with (
            Stop() as stop,
            _cleaned_up(fabric, task, journal),
            writer,
            _told(call, fabric, journal),
            steps_are_quiet(),
        ):
            for step in range(call.start, steps):
                for part in range(1, settings.accumulate + 1):
                    batch = fabric.to_device(next(batches))
                    # Dropout depends on the seed, the number of the batch and the rank of the process alone.
                    torch.manual_seed(mix(settings.seed, number, fabric.global_rank))
                    number += 1
                    with fabric.no_backward_sync(module, enabled=part < settings.accumulate):
                        loss = module(_Box(batch))
                        fabric.backward(loss / settings.accumulate)
                precision.unscale_gradients(optimizer)
                task.before_update(step)
                factor = settings.schedule(step)
                for group in optimizer.param_groups:
                    group["lr"] = group["full_lr"] * factor
                if settings.clip is not None:
                    nn.utils.clip_grad_norm_(precision.main_params(optimizer), settings.clip)
                stepper.step()
                optimizer.zero_grad()
                task.after_update(step)
                steps_done = step + 1
                journal.count(steps_done, losses.numbers)
                if steps_done % running.log_every == 0 or steps_done in (1, steps):
                    journal.write(steps_done, losses.numbers, optimizer.param_groups[0]["lr"])
                if call.after_step is not None:
                    call.after_step(steps_done)
                stops = _all_stop(fabric, stop, steps_done)
                if stops or steps_done % running.steps_between_checkpoints == 0 or steps_done == steps:
                    content = {
                        "extra": task.extra_state(),
                        "optimizer": optimizer.state_dict(),
                        "precision": precision.state_dict(),
                    }
                    if fabric.is_global_zero:
                        writer.save(steps_done, task.state_dict(), content, task.config)
                if stops:
                    writer.wait()
                    stop.kept = f"step {steps_done} of {steps} is kept in {call.folder.path}"
                    break
            writer.wait()
            fabric.barrier()  # from here on every process finds the last checkpoint
    return journal.seconds, journal.per_second


def _agree_on_start(fabric: Fabric, call: FitCall) -> None:
    """Raise a Problem if processes would begin after different steps, as when they do not see the same folder."""
    if fabric.world_size == 1:
        return
    ends = torch.tensor([call.start, -call.start], device=fabric.device)
    last, first = (abs(int(n)) for n in fabric.all_reduce(ends, reduce_op="max"))
    if first != last:
        raise Problem(
            f"one process found step {first} in {call.folder.path}, another step {last}. All of them need the same "
            "folder, on a disk that they share; then rerun."
        )


@contextmanager
def _told(call: FitCall, fabric: Fabric, journal: Journal) -> Iterator[None]:
    """Write to the run's events that it begins, and what ends it before its time, if several processes train."""
    if fabric.world_size == 1 and not launched().launch:
        yield
        return
    count, restarts = fabric.world_size, launched().restarts
    if fabric.is_global_zero:
        again = f", started again ({restarts})" if restarts else ""
        begun = f"{count} processes begin" if not call.start else f"{count} processes go on after step {call.start}"
        call.folder.note_event(begun + again)
    try:
        yield
    except Exception as error:
        what = " ".join(str(error).split())[:300] or type(error).__name__
        after = f"after step {max(journal.step, call.start)}"
        call.folder.note_event(f"process {fabric.global_rank} of {count} gives up {after}: {what}")
        raise
    if fabric.is_global_zero:
        call.folder.note_event(f"{count} processes end after step {max(journal.step, call.start)}")


def _begin(task: Task, data: Batches, call: FitCall, fabric: Fabric) -> None:
    """Let the task prepare for the first step, with the batches of the first epoch."""
    order = _order(data, call.settings, fabric)
    torch.manual_seed(mix(call.settings.seed, -1, fabric.global_rank))

    def batches() -> Iterator[Any]:
        for epoch, indices in order.between(0, order.per_epoch):
            yield fabric.to_device(data.batch(indices, epoch))

    with fabric.autocast():
        task.before_training(len(data), batches)


@contextmanager
def _cleaned_up(fabric: Fabric, task: Task, journal: Journal) -> Iterator[None]:
    """Close the log and bring the task back to the CPU, however the run ends; after an error end other processes."""
    try:
        yield
    except BaseException:
        end_children(fabric)
        raise
    finally:
        journal.close()
        task.cpu()


def _all_stop(fabric: Fabric, stop: Stop, step: int) -> bool:
    """Whether to stop after this step. Processes agree on it, now and then: none may wait for one that has left."""
    if fabric.world_size == 1:
        return bool(stop.requested)
    if step % _AGREE:
        return False
    number = torch.tensor(float(stop.requested), device=fabric.device)
    if agreed := int(fabric.all_reduce(number, reduce_op="max")):  # type: ignore[arg-type]
        stop.request(agreed)
    return bool(agreed)


class _Box:
    """Hides a batch from Fabric, which with mixed precision would round every number in it to 16 bits."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


class _Loss(nn.Module):
    """The loss of a task as a forward pass, which strategies wrap; `numbers` are those for the log."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.numbers: dict[str, Any] = {}

    def forward(self, box: _Box) -> Tensor:
        """The loss of a batch."""
        loss, numbers = self.task.loss(box.batch)
        self.numbers = {"loss": loss.detach(), **numbers}
        return loss


class _Remaining(Sampler[tuple[int, list[int]]]):
    """The epoch and the indices of batches `first` to `last - 1`; the data are told which groups come next."""

    def __init__(self, order: Order, first: int, last: int, data: Batches) -> None:
        self.order, self.first, self.last, self.data = order, first, last, data

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        ahead = getattr(self.data, "ahead", None)
        for number in range(self.first, self.last):
            if ahead is not None:
                ahead(self.order.groups_ahead(number))
            yield self.order.at(number)

    def __len__(self) -> int:
        return self.last - self.first


class _Fetch(Dataset[Any]):
    """Whole batches of data, by epoch and indices."""

    def __init__(self, data: Batches) -> None:
        self.data = data

    def __getitem__(self, item: tuple[int, list[int]]) -> Any:
        epoch, indices = item
        return self.data.batch(indices, epoch)


def _order(data: Batches, settings: FitSettings, fabric: Fabric) -> Order:
    """The order of the samples in this process."""
    groups = getattr(data, "sample_groups", None)
    return Order(len(data), settings.batch_size, settings.seed, fabric.global_rank, fabric.world_size, groups)


def _loader(data: Batches, call: FitCall, fabric: Fabric) -> DataLoader[Any]:
    """This process's part of all remaining batches, as one long epoch, so that no position within one is restored."""
    settings, workers = call.settings, call.running.workers
    order = _order(data, settings, fabric)
    sampler = _Remaining(order, call.start * settings.accumulate, settings.steps * settings.accumulate, data)
    return DataLoader(
        _Fetch(data),
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        worker_init_fn=outlive_signals if workers else None,
        persistent_workers=workers > 0,
        pin_memory=fabric.device.type == "cuda",  # then Fabric copies without waiting
        # Its own generator: the loader must not draw from the one that dropout draws from.
        generator=torch.Generator().manual_seed(0),
    )
