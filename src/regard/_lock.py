"""Folders that one process writes to at a time: a lock that ends with its process, and says who has it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard._files import disk_in_words, process_lives, remove_leftovers
from regard._problem import Problem
from regard._ranks import is_first, launched


class BeingWritten(Problem):
    """Another process writes to the folder."""


LOCK = ".lock"
_WAIT = 5.0  # seconds: a process that was told to stop may still be writing its last checkpoint
_LAUNCHED_WAIT = 60.0  # seconds, under torchrun
_BYTE = 1 << 30  # the byte that is locked, beyond the content, so that Windows lets others read that
_held: dict[str, tuple[int, int]] = {}  # what this process holds: the thread, and how often


@contextmanager
def writing_to(folder: Path | str, wait: float = _WAIT) -> Iterator[None]:
    """Hold a folder while this process writes to it, and remove what killed processes left in it.

    A Problem that names the holder if another process has it, for longer than `wait` seconds, default 5, under
    torchrun 60. A lock ends
    with its process, however that ends. Further holds by the same thread, and by processes that train together with
    the first, are free.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing_to(folder):
    ...         sorted(p.name for p in Path(folder).iterdir())
    ['.lock']
    """
    if not is_first():
        yield
        return
    if launched().launch:  # before a restart the first process may have been another, which is ended just now
        wait = max(wait, _LAUNCHED_WAIT)
    folder = Path(folder)
    key, thread = os.path.realpath(folder), threading.get_ident()
    owner, times = _held.get(key, (thread, 0))
    if owner != thread:
        raise Problem(f"{folder} is being written by another thread of this process. Wait for it, or write elsewhere.")
    if times:
        _held[key] = (thread, times + 1)
        try:
            yield
        finally:
            _held[key] = (thread, times)
        return
    with disk_in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = _acquire(folder / LOCK, time.monotonic() + wait)
    _held[key] = (thread, 1)
    try:
        remove_leftovers(folder)
        yield
    finally:
        del _held[key]
        with contextlib.suppress(OSError):
            if os.name != "nt":  # while it is still held: whoever waits for it looks whether it is still there
                (folder / LOCK).unlink(missing_ok=True)
        os.close(file)
        with contextlib.suppress(OSError):
            if os.name == "nt":
                (folder / LOCK).unlink(missing_ok=True)


def _acquire(path: Path, until: float) -> int:
    """Lock the file of a folder, and write into it who has it; return its descriptor."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _try_to_lock(file, path) and _is_still(path, file):
                os.ftruncate(file, 0)
                holder = {"process": os.getpid(), "host": socket.gethostname()}
                os.write(file, json.dumps(holder).encode())
                return file
            holder = _holder(path)
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if time.monotonic() > until:
            who = f"process {holder['process']} on {holder['host']}" if holder else "another process"
            raise BeingWritten(
                f"{path.parent} is being written by {who}. Wait until that ends, end it, or choose another folder."
            )
        time.sleep(0.05)


def _try_to_lock(file: int, path: Path) -> bool:
    """Lock a byte of an open file for this process; False if another has it."""
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(file, _BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            # Of the kind that a forked process does not inherit: loaders may outlive a killed trainer for a moment.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _BYTE)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks: by the process that the file names
        holder = _holder(path)
        if not holder or holder["process"] == os.getpid():
            return True
        return holder["host"] == socket.gethostname() and not process_lives(holder["process"])
    return True


def _is_still(path: Path, file: int) -> bool:
    """Whether the locked file is the one in the folder: its last holder may have removed it."""
    try:
        there, mine = path.stat(), os.fstat(file)
    except FileNotFoundError:
        return False
    return os.name == "nt" or (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _holder(path: Path) -> dict[str, Any]:
    """The process and the host that a lock names; empty if it cannot be read."""
    try:
        content = json.loads(path.read_bytes()[:1000])
        return {"process": int(content["process"]), "host": str(content["host"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
