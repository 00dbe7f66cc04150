"""Files that are whole or not there: atomic writes, reserved space, what killed processes left, errors in words."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regard._problem import Problem

_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_GONE = {errno.ENOENT, errno.ENOTDIR, getattr(errno, "ESTALE", errno.ENOENT)}


def temporary_beside(path: Path) -> Path:
    """The name under which this process writes what becomes `path`.

    >>> temporary_beside(Path("out/a.txt")).name == f".a.txt.{os.getpid()}.tmp"
    True
    """
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary path to write to; renamed to `path` at the end of the block, deleted if the block raises.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "figures" / "a.txt") as beside:
    ...         _ = beside.write_text("whole")
    ...     (Path(folder) / "figures" / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = temporary_beside(path)
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what killed processes left under temporary names in a folder and its subfolders; return the paths.

    >>> import subprocess, sys, tempfile
    >>> done = subprocess.Popen([sys.executable, "-c", ""])
    >>> _ = done.wait()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / f".log.csv.{done.pid}.tmp").write_text("half")
    ...     _ = (Path(folder) / f".log.csv.{os.getpid()}.tmp").write_text("being written")
    ...     len(remove_leftovers(Path(folder)))
    1
    """
    removed = []
    for place in (folder, *(child for child in _entries(folder) if child.is_dir() and not child.is_symlink())):
        for entry in _entries(place):
            match = _TEMPORARY.fullmatch(entry.name)
            if match and not process_lives(int(match[1])):
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
                removed.append(entry)
    return removed


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def process_lives(number: int) -> bool:
    """Whether a process of this number runs on this machine; True if that cannot be known.

    >>> process_lives(os.getpid())
    True
    """
    if number <= 0:
        return False
    if os.name == "nt":  # where os.kill(number, 0) would end the process
        import ctypes

        kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
        handle = kernel.OpenProcess(0x1000, False, number)  # PROCESS_QUERY_LIMITED_INFORMATION
        if not handle:
            return bool(kernel.GetLastError() == 5)  # access denied: there is one, of somebody else
        kernel.CloseHandle(handle)
        return True
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def reserve(file: BinaryIO, size: int) -> None:
    """Make an open file `size` bytes long, with space on the disk for each; an OSError now rather than later.

    Without `os.posix_fallocate`, zeros are written. Content within `size` is kept; a longer file is not shortened.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     reserve(file, 10_000)
    ...     file.seek(0, 2)
    10000
    """
    file.flush()
    present = os.fstat(file.fileno()).st_size
    if size <= present:
        return
    try:
        os.posix_fallocate(file.fileno(), present, size - present)  # type: ignore[attr-defined,unused-ignore]
        return
    except AttributeError:
        pass
    except OSError as error:
        if error.errno in _FULL:
            os.ftruncate(file.fileno(), present)
            raise
    file.seek(present)
    try:
        for start in range(present, size, 1 << 20):
            file.write(bytes(min(1 << 20, size - start)))
        file.flush()
    except OSError:
        os.ftruncate(file.fileno(), present)
        raise


@contextmanager
def disk_in_words(place: Path | str, kept: Callable[[], str] = str) -> Iterator[None]:
    """A context that turns errors of the disk into a `Problem` of one line.

    `place`: what was being written, for errors that do not name a file.
    `kept`: returns what was kept, in words; default nothing.

    >>> with disk_in_words("out/run", lambda: "Step 3 is kept."):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    regard._problem.Problem: no space is left on the disk of out/run. Step 3 is kept. Make space, then rerun ...
    """
    try:
        yield
    except OSError as error:
        if (words := disk_words(error, place, kept())) is None:
            raise
        raise Problem(words) from error


def disk_words(error: OSError, place: Path | str = "", kept: str = "") -> str | None:
    """An error of the disk in one line with its remedy; None for errors of another kind.

    `error`: what was raised.
    `place`: a name for errors without one.
    `kept`: a sentence on what was kept.

    >>> disk_words(PermissionError(errno.EACCES, "Permission denied", "out/run"))
    'no access to out/run (Permission denied). Allow it, or choose another place: --out'
    """
    name = error.filename if isinstance(error.filename, str | bytes | os.PathLike) else place
    name = os.fsdecode(name) if name else "the output"
    parts = [kept] if kept else []
    if error.errno in _FULL:
        parts = [f"no space is left on the disk of {name}.", *parts, "Make space, then rerun the command to resume."]
    elif error.errno in _FORBIDDEN:
        reason = f"no access to {name} ({error.strerror})."
        parts = [reason, *parts, "Allow it, or choose another place: --out"]
    elif error.errno in _GONE and place:
        parts = [f"{name} was removed while it was in use.", *parts, "Put it back, or rerun the command to resume."]
    elif error.errno == errno.EIO:
        parts = [f"the disk of {name} fails ({error.strerror}).", *parts, "Copy what is there to another disk."]
    else:
        return None
    return " ".join(parts)
