"""Progress on standard error: an estimate after some seconds, then the time left, on a terminal or in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_BEFORE, _BETWEEN, _REDRAWN = 5.0, 25.0, 0.5  # seconds: before the first line, between lines, between redrawn ones


class Progress:
    """One line that is overwritten, on a terminal; elsewhere two or three lines a minute.

    The first line has an estimate of the whole time, the others the time left, and the last one the time it took.
    Lines come by the clock, so that slow work is seen to go on and quick work is quiet.

    `total`: of what is counted; 1.0 for a share of the whole, which is shown in percent.
    `unit`: what is counted; default "step".
    `start`: how much is done already; default 0.
    `shown`: whether to print anything; default True.

    >>> import contextlib
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     Progress(20).show(20, "loss 0.5000")
    step 20/20  loss 0.5000  took 0:00
    """

    def __init__(self, total: float, unit: str = "step", *, start: float = 0, shown: bool = True) -> None:
        self.total, self.unit, self.start, self.shown = total, unit, start, shown
        self.terminal = shown and sys.stderr.isatty()
        self._began = time.monotonic()
        self._last: float | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for a line, for callers whose `detail` costs something."""
        if not self.shown:
            return False
        now, wait = time.monotonic(), _REDRAWN if self.terminal else _BETWEEN
        return now - self._began >= _BEFORE if self._last is None else now - self._last >= wait

    def show(self, done: float, detail: str = "") -> None:
        """Print a line about what is done, if it is time for one or everything is done.

        `done`: how much, with what was done at the start.
        `detail`: more to say, such as the loss; default nothing.
        """
        if not self.shown or done <= self.start or not (self.due or done >= self.total):
            return
        now, first = time.monotonic(), self._last is None
        self._last = now
        seconds = now - self._began
        left = seconds / (done - self.start) * (self.total - done)
        if done >= self.total:
            when = f"took {clock(seconds)}"
            self.shown = False  # the last line is said once
        elif first:
            when = f"about {duration(left)} here"
        else:
            when = f"{clock(left)} left"
        share = isinstance(self.total, float)
        count = f"{100 * done:.1f} % of the {self.unit}" if share else f"{self.unit} {done}/{self.total}"
        line = "  ".join(part for part in (count, detail, when) if part)
        end = "\n" if not self.terminal or done >= self.total else ""
        sys.stderr.write((f"\r{line:<78}" if self.terminal else line) + end)
        sys.stderr.flush()


def counted(unit: str, shown: bool = True) -> Callable[[int, int], None]:
    """A function that is called with how much is done and how much there is, and shows it as `Progress` does.

    `unit`: what is counted.
    `shown`: whether to print anything; default True.
    """
    line = Progress(0, unit, shown=shown)

    def show(done: int, total: int) -> None:
        line.total = total
        line.show(done)

    return show


def clock(seconds: float) -> str:
    """Seconds as [hours:]minutes:seconds.

    >>> clock(65), clock(3700)
    ('1:05', '1:01:40')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def duration(seconds: float) -> str:
    """Seconds as an estimate in words, rounded as estimates are.

    >>> duration(43), duration(540), duration(4 * 3600)
    ('43 seconds', '9 minutes', '4.0 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
