"""Leases on pieces of work, on a disk that several processes and machines share: who works on what, and who is gone.

A lease is a file. Its holder renews it by a new stamp every few seconds; who sees the same stamp for longer than the
lease lasts, by its own clock, takes the work over. Clocks of machines are never compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._ranks import launched

LASTS = 60.0
"""Seconds after which work is taken over from a process that has not renewed its lease."""


@dataclass
class Leases:
    """The leases in a folder.

    The leases of a piece of work are files NAME.0, NAME.1, ...; the last one counts. Taking over is making the next
    file, which succeeds for one process only.

    `folder`: where the files are.
    `lasts`: seconds without a renewal after which a lease is void; default 60. A tenth of it is between renewals.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     leases = Leases(Path(folder))
    ...     with leases.hold("a") as mine:
    ...         with Leases(Path(folder)).hold("a") as theirs:
    ...             print(mine, theirs)
    ...     with Leases(Path(folder)).hold("a") as theirs:
    ...         print(theirs)
    True False
    True
    """

    folder: Path
    lasts: float = LASTS
    _seen: dict[str, tuple[Any, float]] = field(default_factory=dict, repr=False)

    def is_free(self, name: str) -> bool:
        """Whether nobody works on it, as far as is known."""
        number = self._last(name)
        if number < 0:
            return True
        said = self._read(name, number)
        if said.get("released") or self._before_restart(said):
            return True
        stamp, now = (number, said.get("stamp")), time.monotonic()
        if self._seen.get(name, (None, 0.0))[0] != stamp:
            self._seen[name] = (stamp, now)
        return now - self._seen[name][1] > self.lasts

    @contextmanager
    def hold(self, name: str) -> Iterator[bool]:
        """Hold the lease while the context lasts, if it is free; says whether it is held."""
        number = self._last(name) + 1
        if not self.is_free(name) or not self._make(name, number):
            yield False
            return
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(name, number, ended), daemon=True)
        renewing.start()
        try:
            yield True
        finally:
            ended.set()
            renewing.join()
            with contextlib.suppress(OSError):  # else it ends by itself
                self._write(name, number, released=True)

    def holder(self, name: str) -> str:
        """Who works on it, or has, in words."""
        said = self._read(name, self._last(name))
        return f"process {said.get('process', '?')} on {said.get('host', '?')}"

    def _path(self, name: str, number: int) -> Path:
        return self.folder / f"{name}.{number}"

    def _last(self, name: str) -> int:
        """The number of the lease that counts; -1 if there is none."""
        number = -1
        while self._path(name, number + 1).exists():
            number += 1
        return number

    def _read(self, name: str, number: int) -> dict[str, Any]:
        try:
            said = json.loads(self._path(name, number).read_text())
        except (OSError, ValueError):  # just being made
            return {}
        return said if isinstance(said, dict) else {}

    def _content(self, released: bool) -> str:
        who = {"process": os.getpid(), "host": socket.gethostname(), "launch": launched().launch}
        return json.dumps({**who, "stamp": uuid.uuid4().hex, "released": released})

    def _make(self, name: str, number: int) -> bool:
        """Make the next lease; False if another process was faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(self._path(name, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            file.write(self._content(released=False))
        return True

    def _write(self, name: str, number: int, *, released: bool) -> None:
        with replacing(self._path(name, number)) as beside:
            beside.write_text(self._content(released))

    def _renew(self, name: str, number: int, ended: threading.Event) -> None:
        while not ended.wait(self.lasts / 10):
            if self._last(name) != number:  # taken over: this process was thought to be gone
                return
            with contextlib.suppress(OSError):  # a disk that fails for a moment
                self._write(name, number, released=False)

    @staticmethod
    def _before_restart(said: dict[str, Any]) -> bool:
        """Whether the holder belongs to the same launch of torchrun before it was started again: it is gone."""
        if launched().machines > 1:  # machines count their restarts apart
            return False
        run, _, restart = launched().launch.rpartition("/")
        theirs, _, earlier = str(said.get("launch", "")).rpartition("/")
        return bool(run) and theirs == run and earlier.isdigit() and int(earlier) < int(restart)
