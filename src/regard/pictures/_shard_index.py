"""The index of a shard: where each picture begins, its size, its checksum and its label, 16 bytes a picture."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from regard._problem import Problem
from regard.pictures._sources import SUFFIXES

if TYPE_CHECKING:
    import numpy as np

TAR_BLOCK = 512  # the content of a file in a tar begins at a multiple of it
NO_LABEL = 0xFFFFFFFF
INDEX_FORMAT = 1
FIELDS = [("block", "<u4"), ("size", "<u4"), ("crc", "<u4"), ("label", "<u4")]
_LARGEST = 1 << 32
_BUFFER = 1 << 20  # bytes that are read at a time


@dataclass(frozen=True)
class ShardHeader:
    """What a source keeps of a shard's index: the number of `pictures`, the names of its `classes`, and a `digest`.

    `labelled`: whether each picture has a label.

    >>> ShardHeader.from_bytes(ShardHeader(2, ("cat",), False, "00").to_bytes()).pictures
    2
    """

    pictures: int
    classes: tuple[str, ...]
    labelled: bool
    digest: str

    @property
    def index_bytes(self) -> int:
        """The size of the file of the index."""
        return len(self.to_bytes()) + 4 * len(FIELDS) * self.pictures

    def to_bytes(self) -> bytes:
        """As a line of JSON."""
        content = {
            "format": INDEX_FORMAT,
            "pictures": self.pictures,
            "classes": list(self.classes),
            "labelled": self.labelled,
            "digest": self.digest,
        }
        return json.dumps(content).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> ShardHeader:
        """The inverse of `to_bytes`, of a file that begins with it; a ValueError if it does not."""
        read: Any = json.loads(content[: content.index(b"\n")])
        if not isinstance(read, dict) or read.get("format") != INDEX_FORMAT:
            raise ValueError(f"not an index of format {INDEX_FORMAT}")
        classes = tuple(str(name) for name in read["classes"])
        return cls(int(read["pictures"]), classes, bool(read["labelled"]), str(read["digest"]))


@dataclass(frozen=True)
class ShardIndex:
    """The pictures of a shard in the order of the tar: `records` with block, size, crc and label, and the header.

    A label is a number of the header's classes.
    """

    header: ShardHeader
    records: np.ndarray[Any, Any]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, str | None]]) -> ShardIndex:
        """The index of pictures with block, size, crc and the name of a class or None."""
        import numpy as np

        classes = tuple(sorted({label for *_, label in rows if label is not None}))
        number = {name: i for i, name in enumerate(classes)} | {None: NO_LABEL}
        records = np.array([(block, size, crc, number[label]) for block, size, crc, label in rows], dtype=FIELDS)
        labelled = bool(rows) and all(label is not None for *_, label in rows)
        return cls(ShardHeader(len(rows), classes, labelled, _digest(records, classes)), records)

    def to_bytes(self) -> bytes:
        """As a file: the header, then the records."""
        return self.header.to_bytes() + self.records.tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> ShardIndex:
        """The inverse of `to_bytes`; a ValueError if the content is not whole."""
        import numpy as np

        header = ShardHeader.from_bytes(content)
        body = content[content.index(b"\n") + 1 :]
        if len(body) != header.pictures * np.dtype(FIELDS).itemsize:
            raise ValueError(f"{len(body)} bytes for {header.pictures} pictures")
        records = np.frombuffer(body, dtype=FIELDS)
        if _digest(records, header.classes) != header.digest:
            raise ValueError("its content is not what its digest says")
        return cls(header, records)


def _digest(records: np.ndarray[Any, Any], classes: tuple[str, ...]) -> str:
    """A short hash of the records, in which are the checksums of all pictures, and of the names of classes."""
    hashed = hashlib.sha256(records.tobytes())
    hashed.update(json.dumps(classes).encode())
    return hashed.hexdigest()[:16]


def index_tar(file: BinaryIO | Any, name: str) -> ShardIndex:
    """Read a tar from its beginning to its end, without seeking, and return its index.

    Pictures are files with a suffix of a picture; NAME.cls is the label of NAME.jpg, webdataset's way. Links are
    ignored, compressed tars refused.

    `file`: open for reading bytes.
    `name`: of the tar, for messages.

    >>> import io
    >>> tar = io.BytesIO()
    >>> with tarfile.open(fileobj=tar, mode="w") as made:
    ...     made.addfile(tarfile.TarInfo("a.png"))
    >>> index_tar(io.BytesIO(tar.getvalue()), "0.tar").header.pictures
    1
    """
    labels: dict[str, str] = {}
    pictures: list[tuple[str, int, int, int]] = []
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=_BUFFER) as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key = f"{folder}/{stem}"
                if not member.isfile() or member.issparse() or not stem:
                    continue
                picture = f".{suffix.rsplit('.', 1)[-1].lower()}" in SUFFIXES
                if not (picture or suffix == "cls") or (content := tar.extractfile(member)) is None:
                    continue
                data = content.read()
                if len(data) != member.size:
                    raise EOFError(f"it ends inside {member.name}")
                if not picture:
                    labels[key] = data.decode("utf-8", "replace").strip()
                elif member.size >= _LARGEST or member.offset_data >= _LARGEST * TAR_BLOCK:
                    raise Problem(f"{name}:{member.name} is larger than an index can say. Make smaller shards.")
                else:
                    pictures.append((key, member.offset_data // TAR_BLOCK, member.size, zlib.crc32(data)))
                tar.members = []  # type: ignore[attr-defined]  # it would keep all that it has passed
    except (tarfile.TarError, EOFError) as error:
        raise Problem(f"{name} is not a plain tar ({error}). Unpack or make it again without compression.") from error
    return ShardIndex.of([(block, size, crc, labels.get(key)) for key, block, size, crc in pictures])
