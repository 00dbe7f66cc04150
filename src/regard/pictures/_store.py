"""A folder of files on a disk or behind a URL, read by fsspec, with retries that are counted and named."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from regard._install import install_packages
from regard._problem import Problem, Unreachable

T = TypeVar("T")
PATIENCE = 300.0
"""Seconds for which a server that fails is asked again, before the run ends."""
_PAUSES = (0.2, 30.0)  # seconds: the first, and the longest; each is twice the one before
_CHUNK = 1 << 22  # bytes of a request for a part of a large file; each stream has one in memory
_CONNECT, _ANSWER = 10.0, 30.0  # seconds that a server of http may take to answer, and between two packets
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]*@")
# What no second attempt changes: mistakes of the program, and those that the caller handles.
_FINAL = (Problem, FileNotFoundError, IsADirectoryError, ImportError, TypeError, AttributeError, NotImplementedError)


@dataclass(frozen=True)
class StoredFile:
    """A file of a store: its size in bytes, and a text that changes with its content, as far as the store says."""

    size: int
    stamp: str


def is_url(place: Path | str) -> bool:
    """Whether a place is a URL such as s3://bucket/shards, not a path.

    >>> is_url("s3://bucket/shards"), is_url("shards/0.tar")
    (True, False)
    """
    return "://" in str(place)


class Store:
    """The files of a folder or of a URL.

    `base`: a path or a URL of any kind that fsspec knows: s3://, gs://, http://, https://, memory://, ...
    `patience`: seconds for which a server that fails is asked again; default 300.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.txt").write_bytes(b"0123456789")
    ...     Store(folder).read("a.txt", 2, 5), Store(folder).found("a.txt").size
    (b'234', 10)
    """

    def __init__(self, base: Path | str, patience: float = PATIENCE) -> None:
        self.is_local = not is_url(base)
        self.base = Path(base) if self.is_local else None
        self.url = str(base).rstrip("/")
        self.patience = patience
        self.whole_only = False  # whether the server sends whole files only
        self._faults: list[tuple[str, str]] = []

    def at(self, name: str) -> str:
        """The path or the URL of a file, for people: without the password that a URL may have."""
        if self.base is not None:
            return str(self.base / name)
        return without_password(f"{self.url}/{name}".rstrip("/"))

    @property
    def _is_web(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    def names(self, suffix: str) -> dict[str, StoredFile | None]:
        """The files with a suffix, in order; None for those whose size the list does not say."""
        if self.base is not None:
            return {path.name: self._stat(path) for path in sorted(self.base.glob(f"*{suffix}"))}
        try:
            entries = self._asked(self.at(""), lambda: self._fs.ls(self._path(""), detail=True))
        except (FileNotFoundError, NotADirectoryError) as error:
            remedy = "Check the URL, or name tars of it: .../{000..127}.tar" if self._is_web else "Check the URL."
            raise Problem(f"{self.at('')} is no folder that can be listed. {remedy}") from error
        files = {str(entry["name"]).rstrip("/").rpartition("/")[2]: entry for entry in entries}
        return {name: _found(files[name]) for name in sorted(files) if name.endswith(suffix)}

    def found(self, name: str) -> StoredFile:
        """Size and stamp of a file; a FileNotFoundError if there is none."""
        if self.base is not None:
            return self._stat(self.base / name)
        found = _found(self._asked(self.at(name), lambda: self._fs.info(self._path(name))))
        if found is None:
            raise Problem(f"{self.at(name)}: the server does not say how large it is. Copy it to another one.")
        return found

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a file from `start` to before `stop`, default its end; a short answer is asked for again."""
        if stop is None and self.base is None:
            stop = self.found(name).size
        if self.base is not None:
            with (self.base / name).open("rb") as file:
                file.seek(start)
                return file.read(-1 if stop is None else stop - start)

        def attempt() -> bytes:
            content: bytes = self._fs.cat_file(self._path(name), start=start or None, end=stop)
            if stop is not None and len(content) > stop - start:  # a server that knows no ranges
                self.whole_only = True
                content = content[start:stop]
            if stop is not None and len(content) != stop - start:
                raise EOFError(f"{len(content)} of {stop - start} bytes came")
            return content

        return self._asked(self.at(name), attempt)

    def copy(self, name: str, size: int, path: Path) -> None:
        """Copy a file of a known size to a path, in parts, each with its own retries."""
        with path.open("r+b" if path.exists() else "wb") as file:
            for start in range(0, size, _CHUNK):
                if self.whole_only:
                    file.seek(0)
                    file.write(self.read(name, 0, size))
                    break
                file.write(self.read(name, start, min(start + _CHUNK, size)))
            file.truncate()
        if path.stat().st_size != size:
            raise Problem(f"{self.at(name)} has {path.stat().st_size} bytes and not {size}. {STALE}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole."""
        if self.base is not None:
            from regard._files import replacing

            with replacing(self.base / name) as beside:
                beside.write_bytes(content)
            return
        try:
            self._fs.pipe_file(self._path(name), content)
        except Exception as error:  # every kind of store has its own errors
            why = " ".join(str(error).split()) or type(error).__name__
            raise Problem(
                f"cannot write {self.at(name)} ({why}). Index the shards where they can be written."
            ) from error

    def faults(self) -> list[tuple[str, str]]:
        """Names and errors of what had to be asked for again, since the last call."""
        taken, self._faults = self._faults, []
        return taken

    @property
    def _fs(self) -> Any:
        """The file system; fsspec keeps one for each process and thread-safe, so it is not kept here."""
        import fsspec  # type: ignore[import-untyped]

        scheme = self.url.partition("://")[0]
        options: dict[str, Any] = {"use_listings_cache": False}
        if scheme in ("http", "https"):
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_ANSWER)
            options["client_kwargs"] = {"timeout": timeout}
        try:
            return fsspec.filesystem(scheme, **options)
        except ImportError as error:
            package = _PACKAGES.get(scheme)
            hint = f"Try: {install_packages(package)}" if package else str(error)
            raise Problem(f"{self.at('')} needs a package that is not here. {hint}") from error
        except ValueError as error:
            raise Problem(
                f"{self.at('')} is of no kind that can be read ({error}). Name a folder, s3:// or http://."
            ) from error

    def _path(self, name: str) -> str:
        """The name of a file as the file system takes it."""
        place = f"{self.url}/{name}".rstrip("/")
        return place if self._is_web else str(self._fs._strip_protocol(place))

    def _stat(self, path: Path) -> StoredFile:
        status = path.stat()
        return StoredFile(status.st_size, str(status.st_mtime_ns))

    def _asked(self, place: str, attempt: Callable[[], T]) -> T:
        """The result of an attempt, repeated with growing pauses while the server fails."""
        begun, pause = time.monotonic(), _PAUSES[0]
        while True:
            try:
                return attempt()
            except Exception as caught:  # aiohttp, botocore and others have their own errors for a failing network
                error = self._reason(caught)
                if isinstance(error, _FINAL):
                    raise
                why = without_password(" ".join(str(error).split())) or type(error).__name__
                if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
                    raise Unreachable(f"no access to {place} ({why}). Allow it, then rerun to resume.") from error
                self._faults.append((place, why))
                if time.monotonic() - begun + pause > self.patience:
                    raise Unreachable(
                        f"{place} could not be read for {self.patience:.0f} s ({why}). Check the server and the "
                        "network, then rerun to resume."
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _reason(self, error: Exception) -> Exception:
        """What an error is about: over http fsspec says of every request for a size that fails: no such file."""
        cause = error.__cause__
        if self._is_web and isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
            return error if getattr(cause, "status", None) in (404, 410) else cause
        return error


def without_password(text: str) -> str:
    """A text without the passwords of the URLs in it.

    >>> without_password("https://me:secret@data.example.org/0.tar")
    'https://me@data.example.org/0.tar'
    """
    return _PASSWORD.sub(r"\1@", text)


STALE = "The shards are not those of the index: run regard index again."


def _found(entry: dict[str, Any]) -> StoredFile | None:
    """A file in a list of fsspec."""
    if entry.get("size") is None:
        return None
    stamp = next(
        (entry[key] for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created") if entry.get(key)), ""
    )
    return StoredFile(int(entry["size"]), str(stamp))
