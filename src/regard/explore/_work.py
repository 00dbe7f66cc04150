"""Work that takes time is done by a few threads, and there is an end to the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


class Busy(Exception):
    """There is no place left in the queue."""


class Workers:
    """A few threads behind a bounded queue.

    A request takes its place before its body is read, so that what waits is bounded in memory too.
    """

    def __init__(self, workers: int, waiting: int) -> None:
        """`workers` threads, and places for `waiting` requests more."""
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="regard")
        self._free = workers + waiting

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue, for as long as the block lasts. Only the event loop's thread comes here."""
        if self._free <= 0:
            raise Busy
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1

    async def do(self, job: Callable[[], Result]) -> Result:
        """The result of `job`, which a thread runs; the event loop goes on meanwhile.

        A visitor who leaves does not free the thread, so their place is kept until the job is over.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise
