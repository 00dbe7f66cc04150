"""A call of `fit`, and the log and the progress of its run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regard.training._folder import RunFolder
from regard.training._log import Log, NoLog, open_log
from regard.training._progress import Progress
from regard.training._settings import FitSettings, Running

_PAUSE = 10.0  # seconds: of several processes, a step that takes longer is an event


@dataclass(frozen=True)
class FitCall:
    """The arguments of `fit`, and the step that the run begins after."""

    start: int
    settings: FitSettings
    running: Running
    folder: RunFolder
    after_step: Callable[[int], None] | None
    on_log: Callable[[int, dict[str, float]], None] | None


class Journal:
    """The log and the progress of a run, in the first process, and its speed."""

    def __init__(self, call: FitCall, first: bool, several: bool) -> None:
        self.call, self.first, self.several = call, first, several
        self.seconds = self.per_second = 0.0
        self.step = 0
        self._log: Log = NoLog()
        if first:
            if not call.start:  # a fresh start: an older run must not be resumed from here on
                call.folder.begin_afresh()
            self._log = open_log(call.running.log, call.folder, call.start)
        self._progress = Progress(call.settings.steps, start=call.start, shown=call.running.progress and first)
        self._start_time, self._updates = time.monotonic(), 0

    def count(self, step: int, numbers: dict[str, Any]) -> None:
        """Count an update, measure the time, and now and then show both."""
        settings = self.call.settings
        self._updates += 1
        self.step = step
        before, self.seconds = self.seconds, time.monotonic() - self._start_time
        if self.several and self.first and self._updates > 1 and self.seconds - before > _PAUSE:
            self.call.folder.note_event(f"step {step} took {self.seconds - before:.0f} s: it waited for a process")
        self.per_second = self._updates * settings.batch_size * settings.accumulate / max(self.seconds, 1e-9)
        if self._progress.due or step == settings.steps:
            self._progress.show(step, f"loss {float(numbers['loss']):.4f}  {self.per_second:.0f} samples/s")

    def write(self, step: int, numbers: dict[str, Any], lr: float) -> None:
        """Log the numbers of a step; called in every process, as those of a task may be sums over processes."""
        entries: dict[str, Any] = {}
        for name, value in numbers.items():
            # A function returns several numbers; it is called only for the steps that are logged.
            entries |= value() if callable(value) else {name: value}
        if not self.first:
            return
        values = {name: float(value) for name, value in entries.items() if not isinstance(value, list)}
        lists = {name: value for name, value in entries.items() if isinstance(value, list)}
        # Lists can be long: they are written about a hundred times in a run.
        steps = self.call.settings.steps
        every = max(1, steps // 100)
        if step < steps and step // every == (step - self.call.running.log_every) // every:
            lists = {}
        values |= {"lr": float(lr), "samples_per_second": self.per_second}
        self._log.write(step, values, lists)
        if self.call.on_log is not None:
            self.call.on_log(step, values)

    def close(self) -> None:
        """Close the log."""
        self._log.close()
