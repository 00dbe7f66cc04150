"""Names of tars: in paths and URLs, alone and several by braces."""

from __future__ import annotations

import re
from pathlib import Path

from regard.pictures._store import is_url

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


def is_tar(place: Path | str) -> bool:
    """Whether a path or a URL names a tar, or several by braces, not a folder.

    >>> is_tar("s3://bucket/{00..63}.tar"), is_tar("s3://bucket/shards/")
    (True, False)
    """
    name = str(place).rpartition("/")[2]
    return name.endswith(".tgz") or ".tar" in name


def braces(name: str) -> list[str]:
    """The names that {first..last} stands for, with as many digits as the first number has.

    >>> braces("{08..10}.tar")
    ['08.tar', '09.tar', '10.tar']
    """
    if (found := _BRACES.search(name)) is None:
        return [name]
    first, last = found.groups()
    numbers = [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    return [one for i in numbers for one in braces(name[: found.start()] + i + name[found.end() :])]


def split(place: Path | str) -> tuple[str, str]:
    """The folder of a tar, and its name in it."""
    if not is_url(place):
        return str(Path(place).parent), Path(place).name
    base, _, name = str(place).rpartition("/")
    return base, name
