"""A source of pictures as a digest: names, sizes, and the content of all or of many, by which it is recognised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard._problem import Problem
from regard.pictures._sources import Arrays, Files, Pictures
from regard.pictures._stored import SavedDataset
from regard.pictures._tars import Tars

READ_ALL = 1 << 30  # bytes of files that are read as a whole; of more, a sample is
_SAMPLE = 256  # pictures in it


def content_parts(source: Pictures) -> Iterator[Any]:
    """What a digest of a source is made of: its pictures' names and sizes, and their content.

    Times do not count, so that a copy is the same data, on a disk or on a server. Of files of more than a gigabyte
    together, the content of 256 is read; of shards nothing is, as their indexes have a checksum of each picture.

    >>> import torch
    >>> one, two = (list(content_parts(Arrays(torch.full((2, 3, 4, 4), value)))) for value in (0.0, 1.0))
    >>> one == one, one == two
    (True, False)
    """
    count = len(source)
    yield type(source).__name__, count
    if isinstance(source, Arrays):
        yield source.pictures.numpy().tobytes()
        return
    if isinstance(source, Files):
        sizes = [path.stat().st_size for path in source.paths]
        yield from zip((path.relative_to(source.folder).as_posix() for path in source.paths), sizes, strict=True)
        few = sum(sizes) <= READ_ALL
        for i in range(count) if few else _spread(count):
            yield source.paths[i].read_bytes()
        return
    if isinstance(source, Tars):
        yield from source.parts()
        return
    for i in range(count):
        yield source.name(i).rpartition(":")[2]
    for i in _spread(count):
        try:
            yield source[i].numpy().tobytes()
        except Problem:
            yield "broken"


def described(source: Pictures) -> str:
    """A source in words.

    >>> import torch
    >>> described(Arrays(torch.zeros(5, 8, 8)))
    '5 pictures in memory'
    """
    if isinstance(source, Files | SavedDataset):
        return f"{len(source)} pictures of {source.folder}"
    if isinstance(source, Tars):
        shards = source.shards
        return f"{len(source)} pictures of {source.store.at(shards[0].name)}{' and others' if shards[1:] else ''}"
    return f"{len(source)} pictures in memory" if isinstance(source, Arrays) else f"{len(source)} pictures"


def _spread(count: int) -> list[int]:
    """At most a sample of the numbers below `count`, evenly spread."""
    size = min(count, _SAMPLE)
    return [i * count // size for i in range(size)]
