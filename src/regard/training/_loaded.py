"""The processes that load batches: they start whole, end with their loop however it ends, and their death is said."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader

from regard._problem import Problem
from regard._stop import Stop
from regard._workers import end_in_words

_ENDING = 5.0  # seconds that a process has to end by itself


class Loaded(Iterator[Any]):
    """The batches of a loader, within a context.

    If a process that loads dies, torch raises a RuntimeError at any place of this one; it becomes a Problem. At the end
    of the context all of them are gone: at the end of this process multiprocessing would send each SIGTERM and wait for
    it, and the first SIGTERM is not obeyed (`outlive_signals`).

    >>> with Loaded(DataLoader([1, 2, 3], batch_size=None)) as batches:
    ...     list(batches)
    [1, 2, 3]
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Nothing starts before the context is entered."""
        self._loader: DataLoader[Any] | None = loader
        self._batches: Iterator[Any] = iter(())
        self._processes: list[BaseProcess] = []

    def __next__(self) -> Any:
        """The next batch."""
        return next(self._batches)

    def __enter__(self) -> Loaded:
        """Start the processes; a signal meanwhile is obeyed when all have started."""
        before = multiprocessing.active_children()
        try:
            with Stop():
                assert self._loader is not None
                self._batches = iter(self._loader)
                self._processes = [p for p in multiprocessing.active_children() if p not in before]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the processes."""
        # Before they are told to end, which is no news.
        ended = [status for process in self._processes if (status := process.exitcode)]
        self._end()
        if ended and isinstance(error, RuntimeError):
            raise Problem(end_in_words("a process that loaded data", ended[0])) from error

    def _end(self) -> None:
        """Drop what keeps the processes alive; kill those that live on, as a traceback may hold it too.

        A signal meanwhile is obeyed at the end: raised within the loader's destructor, it would be lost.
        """
        with Stop(), _deaths_are_no_news():
            self._batches, self._loader = iter(()), None
            for process in self._processes:
                process.join(_ENDING)
                if process.exitcode is None:
                    process.kill()
                    process.join()


@contextlib.contextmanager
def _deaths_are_no_news() -> Iterator[None]:
    """A context in which torch raises no error for a process that loads and dies."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


def outlive_signals(number: int) -> None:
    """In a process that loads: signals to the whole group are for the one that trains, which ends its loaders."""

    def second_ends(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, second_ends)
