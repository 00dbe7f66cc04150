"""Signals that end long work in an orderly way: ctrl-c and SIGTERM are noted, and obeyed where nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

from regard._problem import Problem

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ONE_SIGNAL = 0.5  # seconds: `timeout` and some shells send the same signal twice, to the process and to its group


class Stopped(KeyboardInterrupt):
    """The work was ended by a signal, and what was done is kept.

    number: of the signal.
    kept: what was kept, in words; empty if unknown.

    >>> Stopped(signal.SIGTERM, "step 3 of 9 is kept in out/run").status
    143
    """

    def __init__(self, number: int = signal.SIGINT, kept: str = "") -> None:
        super().__init__(number, kept)
        self.number, self.kept = int(number), kept

    @property
    def status(self) -> int:
        """The exit status that shells give to this signal."""
        return 128 + self.number


def stop_now(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that raises `Stopped`, for code that has nothing to finish first."""
    raise Stopped(number)


def exit_now(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends the process without a word, for one that works for another."""
    os._exit(128 + number)


class Stop:
    """A context in which the first signal is noted, in `requested`, and the second ends the process at once.

    The work within looks at `requested` where it can stop, keeps what it has, says so in `kept`, and leaves the
    context, which then raises `Stopped`. Handlers of somebody else's, ignored signals, and threads other than the main
    one are left alone.

    >>> try:
    ...     with Stop() as stop:
    ...         for step in range(9):
    ...             if step == 3:
    ...                 signal.raise_signal(signal.SIGTERM)
    ...             if stop.requested:
    ...                 stop.kept = f"step {step} is kept"
    ...                 break
    ... except Stopped as stopped:
    ...     stopped.status, stopped.kept
    (143, 'step 3 is kept')
    """

    def __init__(self) -> None:
        self.requested = 0
        self.kept = ""
        self._when = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                usual = (signal.SIG_DFL, signal.default_int_handler, stop_now, exit_now)
                if handler in usual or isinstance(getattr(handler, "__self__", None), Stop):
                    self._before[number] = handler
                    signal.signal(number, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler: note the first signal, end the process at the second."""
        if self.requested and time.monotonic() - self._when > _ONE_SIGNAL:
            os._exit(128 + number)
        self.request(number)

    def request(self, number: int) -> None:
        """Ask for the end of the work, as a signal would; asking twice is asking once."""
        if not self.requested:
            self.requested, self._when = int(number), time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # An error after a signal is mostly its consequence, such as a helping process that it ended too.
        if self.requested and not isinstance(error, Problem | Stopped):
            raise Stopped(self.requested, self.kept) from error


def ignore_signals() -> None:
    """For the end of a program, which a signal would only fill with tracebacks; in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def current_stop() -> Stop | None:
    """The innermost `Stop` that SIGTERM would be noted by now; None if there is none.

    >>> with Stop() as stop:
    ...     current_stop() is stop
    True
    """
    owner = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return owner if isinstance(owner, Stop) else None


@contextmanager
def terminable() -> Iterator[None]:
    """A context in which SIGTERM raises `Stopped`, as ctrl-c raises KeyboardInterrupt; in the main thread only."""
    listens = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if listens:
        signal.signal(signal.SIGTERM, stop_now)
    try:
        yield
    finally:
        if listens:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
