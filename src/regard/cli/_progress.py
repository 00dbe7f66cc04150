"""Progress of a command that counts, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TERMINAL, _FILE = 0.2, 20.0  # seconds between two lines, where they replace each other and where they do not


@contextmanager
def counted(things: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is called with the number done and to do; `things` is what is counted.

    On a terminal one line is written over and over, and removed at the end; elsewhere there is a line every 20 s.
    """
    terminal = sys.stderr.isatty()
    start = last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < (_TERMINAL if terminal else _FILE):
            return
        last = now
        left = (now - start) * (total - done) / max(1, done)
        text = f"{done} of {total} {things}, about {left:.0f} s left"
        sys.stderr.write(f"\r{text:<60}" if terminal else f"{text}\n")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if terminal and last > start:
            sys.stderr.write(f"\r{'':<60}\r")
            sys.stderr.flush()
