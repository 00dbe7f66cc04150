"""What a run is trained on, recognised by a digest, so that data of another kind are not taken for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataDescription:
    """Data in words for people, and as a digest of names, sizes and content: equal for equal data.

    >>> one, two = (DataDescription.of(f"{n} pictures", [f"{i}.png" for i in range(n)]) for n in (3, 4))
    >>> one == two, str(one)
    (False, '3 pictures, digest dac415bf77af74eb')
    """

    text: str
    digest: str

    @classmethod
    def of(cls, text: str, parts: Iterable[Any]) -> DataDescription:
        """The description of data that consist of these parts: text, numbers, bytes, tuples of such."""
        return cls(text, digest_of(parts))

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> DataDescription:
        """The inverse of `to_json`."""
        return cls(str(written["text"]), str(written["digest"]))

    def to_json(self) -> dict[str, str]:
        """As a JSON object."""
        return {"text": self.text, "digest": self.digest}

    def __eq__(self, other: object) -> bool:
        """Whether the data are the same, however they are described."""
        return isinstance(other, DataDescription) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return f"{self.text}, digest {self.digest}"


def digest_of(parts: Iterable[Any]) -> str:
    """A short hash of parts in order; names that are not UTF-8 are no obstacle.

    >>> digest_of([b"a", "b"]) == digest_of([b"a", "b"]), digest_of(["ab", "c"]) == digest_of(["a", "bc"])
    (True, False)
    """
    hashed = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode("utf-8", "backslashreplace")
        hashed.update(f"{len(content)}:".encode())
        hashed.update(content)
    return hashed.hexdigest()[:16]
