"""The index of a shard: where each picture begins, its size, its checksum and its label, 16 bytes a picture."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Self

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
    `broken`: why only a part of the tar can be read, or nothing of it; "" if it is whole.

    >>> ShardHeader.from_bytes(ShardHeader(2, ("cat",), False, "00").to_bytes()).pictures
    2
    """

    pictures: int
    classes: tuple[str, ...]
    labelled: bool
    digest: str
    broken: str = ""

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
            **({"broken": self.broken} if self.broken else {}),
        }
        return json.dumps(content).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> ShardHeader:
        """The inverse of `to_bytes`, of a file that begins with it; a ValueError if it does not."""
        read: Any = json.loads(content[: content.index(b"\n")])
        if not isinstance(read, dict) or read.get("format") != INDEX_FORMAT:
            raise ValueError(f"not an index of format {INDEX_FORMAT}")
        classes = tuple(str(name) for name in read["classes"])
        labelled, digest, broken = bool(read["labelled"]), str(read["digest"]), str(read.get("broken", ""))
        return cls(int(read["pictures"]), classes, labelled, digest, broken)


@dataclass(frozen=True)
class ShardIndex:
    """The pictures of a shard in the order of the tar: `records` with block, size, crc and label, and the header.

    A label is a number of the header's classes.
    """

    header: ShardHeader
    records: np.ndarray[Any, Any]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, str | None]], broken: str = "") -> ShardIndex:
        """The index of pictures with block, size, crc and the name of a class or None."""
        import numpy as np

        classes = tuple(sorted({label for *_, label in rows if label is not None}))
        number = {name: i for i, name in enumerate(classes)} | {None: NO_LABEL}
        records = np.array([(block, size, crc, number[label]) for block, size, crc, label in rows], dtype=FIELDS)
        labelled = bool(rows) and all(label is not None for *_, label in rows)
        return cls(ShardHeader(len(rows), classes, labelled, _digest(records, classes), broken), records)

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


class _Member(tarfile.TarInfo):
    """A member of a tar that is not taken for the end if its header is broken, as tarfile does."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """The next member."""
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error


def index_tar(file: BinaryIO | Any, name: str) -> ShardIndex:
    """Read a tar from its beginning to its end, without seeking, and return its index.

    Pictures are files with a suffix of a picture; NAME.cls is the label of NAME.jpg, webdataset's way. Links are
    ignored. Of a broken tar, or one that is none, such as a compressed one, the index has what comes before the place
    where it breaks, and the header says why.

    `file`: open for reading bytes.
    `name`: of the tar, for messages.

    >>> import io
    >>> tar = io.BytesIO()
    >>> with tarfile.open(fileobj=tar, mode="w") as made:
    ...     made.addfile(tarfile.TarInfo("a.png"))
    >>> index_tar(io.BytesIO(tar.getvalue()), "0.tar").header.pictures
    1
    >>> index_tar(io.BytesIO(b"no tar"), "0.tar").header.broken
    'truncated header'
    """
    labels: dict[str, str] = {}
    pictures: list[tuple[str, int, int, int]] = []
    broken = ""
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=_BUFFER, tarinfo=_Member) as tar:
            for member in tar:
                _index_member(tar, member, name, labels, pictures)
                tar.members = []  # type: ignore[attr-defined]  # it would keep all that it has passed
    except (tarfile.TarError, EOFError) as error:
        broken = " ".join(str(error).split()) or type(error).__name__
        if labels:  # that of the last picture may be beyond the break, and without it no picture would have one
            pictures = [picture for picture in pictures if picture[0] in labels]
    return ShardIndex.of([(block, size, crc, labels.get(key)) for key, block, size, crc in pictures], broken)


def _index_member(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    name: str,
    labels: dict[str, str],
    pictures: list[tuple[str, int, int, int]],
) -> None:
    """Add a member to the labels or to the pictures (key, block, size, crc), if it is one; EOFError if it is cut."""
    folder, _, base = member.name.rpartition("/")
    stem, _, suffix = base.partition(".")
    key = f"{folder}/{stem}"
    if not member.isfile() or member.issparse() or not stem:
        return
    picture = f".{suffix.rsplit('.', 1)[-1].lower()}" in SUFFIXES
    if not (picture or suffix == "cls") or (content := tar.extractfile(member)) is None:
        return
    data = content.read()
    if len(data) != member.size:
        raise EOFError(f"it ends inside {member.name}")
    if not picture:
        labels[key] = data.decode("utf-8", "replace").strip()
    elif member.size >= _LARGEST or member.offset_data >= _LARGEST * TAR_BLOCK:
        raise Problem(f"{name}:{member.name} is larger than an index can say. Make smaller shards.")
    else:
        pictures.append((key, member.offset_data // TAR_BLOCK, member.size, zlib.crc32(data)))
