"""What each row of a feature store was made from: size, time and content of its picture, by which changes show."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from torch import Tensor

ORIGIN = numpy.dtype([("size", "<i8"), ("time", "<i8"), ("content", "S32")])  # a row of origins.bin
MISSING = -1  # the size of a file that is not there


@dataclass(frozen=True)
class Origin:
    """A picture when its features were made: bytes, time of change in nanoseconds, and a hash of its content.

    A tensor has no time; a row of an older store has no content, and then no size either.

    >>> made, now = Origin(2048, 17, "0123456789abcdef"), Origin(2048, 18)
    >>> made.differs(now), made.differs(Origin(2049, 18)), Origin().is_known
    (None, True, False)
    """

    size: int = 0
    time: int = 0
    content: str = ""

    @classmethod
    def of(cls, picture: Path | Tensor) -> Origin:
        """That of a picture now; a file is not read, so its content is not known."""
        if isinstance(picture, Tensor):
            return cls(picture.nbytes, 0, hash_of(picture))
        try:
            status = picture.stat()
        except OSError:
            return cls(MISSING)
        return cls(status.st_size, status.st_mtime_ns)

    @property
    def is_known(self) -> bool:
        """Whether anything is known."""
        return self != Origin()

    def differs(self, now: Origin) -> bool | None:
        """Whether a picture is another by now: by size and time; None if only its content can tell."""
        if now.content and self.content:
            return now.content != self.content
        if self.size != now.size:
            return True
        return False if self.time == now.time else None


def hash_of(picture: Path | Tensor | bytes) -> str:
    """A hash of a picture's content, 32 hexadecimal digits; of a file its bytes. An OSError if it cannot be read.

    >>> import torch
    >>> hash_of(torch.zeros(3, 2, 2)) == hash_of(torch.zeros(3, 2, 2)), len(hash_of(torch.ones(1)))
    (True, 32)
    """
    hashed = hashlib.blake2b(digest_size=16)
    if isinstance(picture, Tensor):
        hashed.update(f"{picture.dtype}{tuple(picture.shape)}".encode())
        hashed.update(picture.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(picture, bytes):
        hashed.update(picture)
    else:
        with picture.open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
    return hashed.hexdigest()


def is_another(before: Origin, now: Origin, picture: Path | Tensor, moved: bool) -> bool:
    """Whether a picture's content is not what a row was made from; a file is read only if it is in doubt.

    `before`: what the row was made from.
    `now`: the same of the picture as it is.
    `picture`: the picture.
    `moved`: whether its path is another, so that size and time prove nothing.
    """
    if not before.is_known or (now.size == MISSING and before.content):
        return False  # an older store; or a picture that is gone, whose features are still right
    differs = before.differs(now)
    if differs is True or (differs is False and not moved):
        return differs
    if not before.content:  # it could not be read then
        return True
    try:
        return hash_of(picture) != before.content
    except OSError:
        return False


def as_row(origin: Origin) -> Any:
    """As a row of origins.bin."""
    return numpy.array((origin.size, origin.time, origin.content.encode()), dtype=ORIGIN)


def from_row(row: Any) -> Origin:
    """The inverse of `as_row`.

    >>> from_row(as_row(Origin(3, 4, "abc")))
    Origin(size=3, time=4, content='abc')
    """
    return Origin(int(row["size"]), int(row["time"]), row["content"].item().decode("ascii", "replace"))
