"""A file of rows of equal length, read and written row by row, without a memory map.

A map is no quicker here, and a file that is cut short, or a disk that fills up, ends a process that maps it without a
word (SIGBUS); a read or a write says what is wrong.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from regard._problem import Problem


class RowReader:
    """Reads rows of a file as an array (rows, width); threads and forked processes may share it, others open it again.

    `path`: the file.
    `width`: numbers in a row.
    `dtype`: of the numbers; default float16.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = numpy.arange(6, dtype=numpy.float16).tofile(Path(folder) / "rows.bin")
    ...     RowReader(Path(folder) / "rows.bin", 2).read([2, 0]).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, path: Path, width: int, dtype: Any = numpy.float16) -> None:
        """Open the file, until this object is gone."""
        self.path, self.width, self.dtype = path, width, numpy.dtype(dtype)
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, self._file)

    def read(self, numbers: Sequence[int]) -> Any:
        """The rows of these numbers; a Problem if the file has become too short, or is not readable any more."""
        rows = numpy.empty((len(numbers), self.width), self.dtype)
        for row, number in zip(rows, numbers, strict=True):
            self._fill(memoryview(row).cast("B"), number * row.nbytes)
        return rows

    def _fill(self, target: memoryview, offset: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = self._read_at(target[done:], offset + done)
            except OSError as error:
                raise Problem(f"{self.path} cannot be read ({error.strerror}). Put it back, then rerun.") from error
            if not count:
                raise Problem(
                    f"{self.path} was cut short while it was read: row {offset // len(target)} is not there. Make the "
                    "features again: regard features"
                )
            done += count

    def _read_at(self, target: memoryview, offset: int) -> int:
        """Read some bytes at a place, without the position of the file, which forked processes share."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file, [target], offset)
        if hasattr(os, "pread"):
            content = os.pread(self._file, len(target), offset)
        else:
            with self._lock:
                os.lseek(self._file, offset, os.SEEK_SET)
                content = os.read(self._file, len(target))
        target[: len(content)] = content
        return len(content)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, (self.path, self.width, self.dtype)


class RowWriter:
    """Writes rows of the three files of a store. A row counts only from `commit` on, when it is on the disk.

    `features`, `origins`, `state`: the files, long enough for all rows.
    `row`: bytes of a row of features.
    """

    def __init__(self, features: Path, origins: Path, state: Path, row: int) -> None:
        """Open the files."""
        self._row, self._pending = row, dict[int, tuple[int, bytes]]()
        with contextlib.ExitStack() as opened:
            self._features, self._origins, self._state = (
                opened.enter_context(path.open("r+b")) for path in (features, origins, state)
            )
            self._opened = opened.pop_all()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """What was marked counts, however the work ends."""
        self.commit()

    def put(self, number: int, content: bytes) -> None:
        """Write the features of a row."""
        self._features.seek(number * self._row)
        self._features.write(content)

    def mark(self, number: int, state: int, origin: bytes) -> None:
        """What a row is from the next `commit` on: the byte of its state, and what it was made from."""
        self._pending[number] = (state, origin)

    def mark_now(self, number: int, state: int) -> None:
        """Change the state of a row at once, before it is overwritten."""
        self._state.seek(number)
        self._state.write(bytes([state]))
        self._state.flush()

    def commit(self) -> None:
        """Let the marked rows count: their features first, so that no row counts that is not there."""
        if not self._pending:
            return
        self._features.flush()
        os.fsync(self._features.fileno())
        for number, (_, origin) in self._pending.items():
            self._origins.seek(number * len(origin))
            self._origins.write(origin)
        self._origins.flush()
        for number, (state, _) in self._pending.items():
            self._state.seek(number)
            self._state.write(bytes([state]))
        self._state.flush()
        self._pending.clear()

    def close(self) -> None:
        """Close the files."""
        self._opened.close()
