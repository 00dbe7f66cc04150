"""The shards of a place with their indexes: those that are listed beside them, or made by reading each once."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.pictures._shard_cache import held
from regard.pictures._shard_index import INDEX_FORMAT, ShardHeader, ShardIndex, index_tar
from regard.pictures._store import STALE, Store

INDEX = "regard-index"
"""The folder beside shards that `regard index` writes: index.json with all shards, NAME.idx of each."""
MANIFEST = f"{INDEX}/index.json"
_HEADER = 1 << 16  # bytes at the beginning of an index that hold its header, unless it has very many classes


@dataclass(frozen=True)
class Shard:
    """A tar: its name in the store, its bytes, what its index says, and where that is."""

    name: str
    size: int
    header: ShardHeader
    index: Path | str  # a file of this machine, or a name in the store


def listed_shards(store: Store) -> list[Shard] | None:
    """The shards of the index beside them, checked against those that are there; None if there is no index."""
    try:
        content = json.loads(store.read(MANIFEST))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Problem(f"{store.at(MANIFEST)} is broken ({error}). {STALE}") from error
    try:
        if content["format"] != INDEX_FORMAT:
            raise ValueError(f"format {content['format']}")
        base = store.base
        shards = []
        for name, size, header in content["shards"]:
            inside = index_name(name)
            parsed = ShardHeader.from_bytes(json.dumps(header).encode() + b"\n")
            shards.append(Shard(name, int(size), parsed, base / inside if base is not None else inside))
    except (KeyError, TypeError, ValueError) as error:
        raise Problem(f"{store.at(MANIFEST)} is not an index ({error}). {STALE}") from error
    if not store.url.startswith(("http://", "https://")):  # whose lists are pages, or not there
        there = {name: found.size for name, found in store.names(".tar").items() if found is not None}
        if there != {shard.name: shard.size for shard in shards}:
            raise Problem(f"{store.at('')} has other tars than {store.at(MANIFEST)} lists. {STALE}")
    return shards


def indexed_shards(store: Store, folder: Path, names: list[str], say: Callable[[str], None] | None) -> list[Shard]:
    """The shards, with indexes in a folder of this machine; one that is not there is made by reading the shard once."""

    def file(name: str) -> tuple[str, int, Path]:
        try:
            found = store.found(name)
        except FileNotFoundError as error:
            raise Problem(f"{store.at(name)} does not exist. Check the path.") from error
        known = f"{_absolute(store)}/{name} {found.size} {found.stamp}"
        return name, found.size, folder / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.idx"

    with ThreadPoolExecutor(1 if store.is_local else 8) as threads:
        files = list(threads.map(file, names))
        missing = [entry for entry in files if _header(entry[2]) is None]
        size = sum(size for _, size, _ in missing)
        if missing and say is not None and (not store.is_local or size > 10**9):
            say(
                f"{store.at('')}: {len(missing)} shards of {size / 1e9:.1f} GB are read once to index them. "
                "regard index does it once for all machines."
            )
        # Processes of this machine share the work: at first each takes what no other has, then waits for the rest.
        for wait in (False, True) if missing else ():
            list(threads.map(partial(_make_index, store, wait), *zip(*missing, strict=True)))
    shards = []
    for name, size, path in files:
        header = _header(path)
        assert header is not None
        shards.append(Shard(name, size, header, path))
    return shards


def _make_index(store: Store, wait: bool, name: str, size: int, path: Path) -> None:
    """Read a shard from its beginning to its end and write its index, unless another process does or has.

    `wait`: wait for that process, and make the index if it has not.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with held(lock, wait) as free:
            if not free:
                return
            if _header(path) is None:
                index = _read_whole(store, name, size)
                with replacing(path) as beside:
                    beside.write_bytes(index.to_bytes())
            with contextlib.suppress(OSError):  # where an open file cannot be removed
                lock.unlink()  # whoever has it open finds the index
    except OSError as error:
        raise Problem(
            f"indexes of shards cannot be kept in {path.parent} ({error.strerror}). Make space there, or name another "
            "folder: --cache, or REGARD_CACHE"
        ) from error


def _read_whole(store: Store, name: str, size: int) -> ShardIndex:
    """Read a shard from its beginning to its end, for its index."""
    try:
        if store.base is not None:
            with (store.base / name).open("rb") as file:
                return index_tar(file, store.at(name))
        return index_tar(io.BufferedReader(_Whole(store, name, size), 1 << 20), store.at(name))
    except OSError as error:
        raise Problem(f"{store.at(name)} cannot be read ({error}). Check the path.") from error


class _Whole(io.RawIOBase):
    """A file of a store from its beginning to its end, in large parts."""

    PART = 1 << 24

    def __init__(self, store: Store, name: str, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._start, self._part = 0, memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        if not self._part and self._start < self._size:
            stop = self._size if self._store.whole_only else min(self._start + self.PART, self._size)
            self._part = memoryview(self._store.read(self._name, self._start, stop))
            self._start = stop
        count = min(len(buffer), len(self._part))
        buffer[:count] = self._part[:count]
        self._part = self._part[count:]
        return count


def index_name(shard: str) -> str:
    """The name of the index of a shard beside the shards."""
    return f"{INDEX}/{shard}.idx"


def _absolute(store: Store) -> str:
    """The place of a store, also from another working folder."""
    return str(store.base.resolve()) if store.base is not None else store.url


def _header(path: Path) -> ShardHeader | None:
    """The header of an index on this machine; None if it is not there, or not whole."""
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER)
            header = ShardHeader.from_bytes(start if b"\n" in start else start + file.read())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return header
