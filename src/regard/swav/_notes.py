"""What could not be read and what was asked for again, in the folder of a run while it runs, from every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
import torch.distributed as dist

from regard._ranks import is_first
from regard.pictures import Pictures, Tars
from regard.swav._folder import PicturesFolder, Retries, as_written

Fault = tuple[str, str]


class Notes:
    """The notes of a process; `write` adds what is new to the files of the run, so that a crash does not lose it.

    `folder`: of the run; default None, for a task without one: nothing is written.
    `more`: returns further faults, such as those of threads that read ahead; default none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, two = (Notes(PicturesFolder(folder)) for _ in range(2))
    ...     one.add({"a.png": "is broken"}, [("s3://b/0.tar", "timeout"), ("s3://b/0.tar", "reset")])
    ...     two.add({"a.png": "is broken", "b.png": "is broken"}, [("s3://b/0.tar", "timeout")])
    ...     one.write(), two.write()
    ...     Notes(PicturesFolder(folder)).finish()
    (None, None)
    """

    def __init__(self, folder: PicturesFolder | None = None, more: Callable[[], Iterable[Fault]] = tuple) -> None:
        self.folder, self.more = folder, more
        self._broken: dict[str, str] = {}
        before = {} if folder is None else folder.read_retried()
        self.before = sum(retries.count for retries in before.values())
        self.count = 0  # requests of this process that were repeated
        self._written = {} if folder is None else folder.read_broken()
        self._retried: dict[str, Retries] = {}  # since the last `write`

    @property
    def broken(self) -> dict[str, str]:
        """Names and errors of files that could not be read; those of others, and from earlier, as they are written."""
        mine = {as_written(name) for name in self._broken}
        return self._broken | {name: why for name, why in self._written.items() if name not in mine}

    def add(self, broken: Mapping[str, str] | Iterable[Fault] = (), retried: Iterable[Fault] = ()) -> None:
        """Note files that could not be read, and requests that were repeated: name and error of each."""
        self._broken |= dict(broken)
        for name, error in retried:
            self.count += 1
            self._retried[name] = self._retried.get(name, Retries()).once_more(error)

    def write(self) -> None:
        """Add what is new to the files."""
        self.add(retried=self.more())
        if self.folder is None:
            return
        if new := {name: why for name, why in self._broken.items() if as_written(name) not in self._written}:
            self.folder.add_broken(new)
            self._written |= {as_written(name): why for name, why in new.items()}
        if self._retried:
            self.folder.add_retried(self._retried)
            self._retried = {}

    def numbers(self, device: torch.device) -> dict[str, float]:
        """For the log, after `write`: the requests that were repeated in all processes; all must call it."""
        self.write()
        count = torch.tensor(float(self.count), device=device)
        if dist.is_initialized():
            dist.all_reduce(count)
        return {"retries": self.before + float(count)}

    def finish(self) -> None:
        """Write what is new, then each name once, in order, in place of what all processes have added."""
        self.write()
        if self.folder is not None:
            self.folder.sort_notes()
            self._written = self.folder.read_broken()


class Noting(Protocol):
    """A task with notes."""

    notes: Notes


@contextmanager
def noted(
    task: Noting, folder: PicturesFolder, faults: Callable[[], Iterable[Fault]], source: Pictures
) -> Iterator[None]:
    """A context in which a task has notes in the folder of a run, which are written however the context ends.

    `faults`: those of this process since the last call.
    `source`: the pictures of the run, of which the index may say already that shards are broken.
    """
    task.notes = Notes(folder, faults)
    if is_first() and isinstance(source, Tars):
        task.notes.add(source.broken())
    try:
        task.notes.write()  # and not once more in every process that loads
        yield
    except BaseException:
        with suppress(OSError):  # what ends the run is more than what this would say
            task.notes.write()
        raise
    task.notes.write()
