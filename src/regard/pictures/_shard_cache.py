"""Whole shards on a disk of bounded size, shared by all processes of a machine, and the threads that read ahead."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard._files import remove_leftovers, reserve, temporary_beside
from regard._lock import _try_to_lock
from regard._problem import Problem

CACHE_BYTES = 64 * 10**9
"""The most that cached shards take on the disk by default; never more than half of what is free."""
STREAMS = 4  # shards that a process copies at a time
_AGAIN = 0.5  # seconds until shards that another process copies are looked for again


def default_cache() -> Path:
    """The folder of cached shards and indexes: $REGARD_CACHE, default regard in $XDG_CACHE_HOME, default ~/.cache.

    >>> default_cache().is_absolute()
    True
    """
    if os.environ.get("REGARD_CACHE"):
        return Path(os.environ["REGARD_CACHE"]).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


@dataclass(frozen=True)
class CacheSettings:
    """Where shards of a server are kept on this machine, and how much of its disk they may take.

    `folder`: default None, `default_cache()`.
    `limit`: bytes of whole shards; 0 keeps none, and every picture is a request. Default 64 GB.

    >>> CacheSettings(limit=10**9).place == default_cache()
    True
    """

    folder: Path | None = None
    limit: int = CACHE_BYTES

    @property
    def place(self) -> Path:
        """The folder."""
        return self.folder or default_cache()


class ShardCache:
    """Whole shards in a folder; the ones used longest ago give way to new ones.

    A shard is there whole or not at all: it is copied beside and renamed. A lock per shard keeps two processes from
    copying the same. The space is reserved before it is copied, so the limit holds with any number of processes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ShardCache(Path(folder), limit=10)
    ...     made = [cache.bring(n, 6, lambda path: path.write_bytes(b"123456")) for n in ("one", "two")]
    ...     made, cache.path("one").exists(), cache.path("two").exists()
    ([True, True], False, True)
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def path(self, place: str) -> Path:
        """The file of the shard with a URL, whether it is there or not."""
        name = place.rpartition("/")[2][-80:]
        return self.folder / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}-{name}"

    def use(self, place: str) -> Path | None:
        """The file of a shard, marked as used now; None if it is not there."""
        path = self.path(place)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def bring(self, place: str, size: int, copy: Callable[[Path], object], keep: Sequence[str] = ()) -> bool:
        """Copy a shard into the folder; False if another process does, or there is no space for it.

        `place`: the URL of the shard.
        `size`: its bytes.
        `copy`: writes it to a path.
        `keep`: URLs of shards that must not give way; default none.
        """
        if self.use(place) is not None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(place)
        with held(path.with_name(f".{path.name}.lock")) as free:
            if not free:
                return False
            if path.exists():
                return True
            beside = temporary_beside(path)
            try:
                if not self._make_space(size, {self.path(other) for other in keep}, beside):
                    return False
                copy(beside)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        return True

    def drop(self, place: str) -> None:
        """Remove a shard, whose content is not what it should be."""
        self.path(place).unlink(missing_ok=True)

    def _make_space(self, size: int, keep: set[Path], beside: Path) -> bool:
        """Remove shards until one more fits, and reserve its space; False if it cannot fit."""
        with held(self.folder / ".space.lock", wait=True):
            remove_leftovers(self.folder)
            files = []
            for path in self.folder.iterdir():
                with contextlib.suppress(OSError):  # another process may remove it
                    files.append((path.stat().st_mtime, path.stat().st_size, path))
            used = sum(bytes_ for _, bytes_, _ in files)
            limit = min(self.limit, used + shutil.disk_usage(self.folder).free // 2)
            old = sorted(entry for entry in files if entry[2] not in keep and not entry[2].name.startswith("."))
            if used - sum(bytes_ for _, bytes_, _ in old) + size > limit:
                return False
            for _, bytes_, path in old:
                if used + size <= limit:
                    break
                path.unlink(missing_ok=True)
                used -= bytes_
            with beside.open("wb") as file:
                reserve(file, size)
        return True


# Locks of files are those of a process: threads of one need their own.
_threads: dict[str, threading.Lock] = {}
_threads_guard = threading.Lock()


@contextlib.contextmanager
def held(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a file, for this process and this thread; False if another has it and `wait` is not asked for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder) / ".lock") as one:
    ...     with held(Path(folder) / ".lock") as two:
    ...         one, two
    (True, False)
    """
    with _threads_guard:
        mine = _threads.setdefault(str(path), threading.Lock())
    if not mine.acquire(blocking=wait):
        yield False
        return
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            while not (free := _try_to_lock(file, path)) and wait:
                time.sleep(0.02)
            yield free
        finally:
            os.close(file)
    finally:
        mine.release()


class ReadAhead:
    """Threads that copy the shards that are wanted next into the cache, the first ones first.

    `bring`: copies a shard by its number; True if it is in the cache then.

    >>> brought = []
    >>> ahead = ReadAhead(lambda shard, wanted: not brought.append(shard))
    >>> ahead.want([4, 2])
    >>> ahead.wait(5.0)
    True
    >>> sorted(brought)
    [2, 4]
    """

    def __init__(self, bring: Callable[[int, Sequence[int]], bool]) -> None:
        self._bring = bring
        self._wanted: list[int] = []
        self._changed = threading.Condition()
        self._missing: set[int] = set()
        self._taken: set[int] = set()
        self._threads: list[threading.Thread] = []

    def want(self, shards: Sequence[int]) -> None:
        """Say which shards are used next; what is no longer wanted is not copied."""
        with self._changed:
            if list(shards) == self._wanted:
                return
            self._wanted = list(shards)
            self._missing = set(shards)
            while len(self._threads) < min(STREAMS, len(shards)):
                thread = threading.Thread(target=self._work, name="regard-read-ahead", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all shards that are wanted have come; False if they have not in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._missing, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                while (shard := self._next()) is None:
                    self._changed.wait()
                wanted = list(self._wanted)
                self._taken.add(shard)
            try:
                there = self._bring(shard, wanted)
            except Exception:  # whoever needs a picture of this shard will meet the same error, and say it
                there = False
            with self._changed:
                self._taken.discard(shard)
                if there:
                    self._missing.discard(shard)
                self._changed.notify_all()
            if not there:
                time.sleep(_AGAIN)

    def _next(self) -> int | None:
        return next((shard for shard in self._wanted if shard in self._missing and shard not in self._taken), None)


def cache_bytes(gigabytes: float) -> int:
    """A limit in gigabytes as bytes; a Problem if it is negative.

    >>> cache_bytes(1.5)
    1500000000
    """
    if not gigabytes >= 0:
        raise Problem(f"a cache of {gigabytes:g} GB cannot be. Give 0 or more.")
    return int(gigabytes * 10**9)
