"""A thread pool with a bounded queue, for work that would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


class Busy(Exception):
    """The queue is full."""


class Workers:
    """A few threads behind a bounded queue.

    A request enters the queue when its body has arrived: a slow one keeps nobody from a place.
    """

    def __init__(self, workers: int, waiting: int) -> None:
        """`workers` threads, and a queue of `waiting` requests."""
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="regard")
        self._free = workers + waiting
        self._stopped = False

    def stop(self) -> None:
        """Finish what is being worked on; what waits, and what comes, is `Busy`."""
        self._stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Occupy a place in the queue during the block, or raise `Busy`. Only for the thread of the event loop."""
        if self._stopped or self._free <= 0:
            raise Busy
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1

    async def do(self, job: Callable[[], Result]) -> Result:
        """The result of `job`, run in a thread without blocking the event loop.

        A cancelled request still occupies its thread, so its place is freed only at the end of the job.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():  # by `stop`
                raise Busy from None
            await asyncio.wait([running])
            raise
