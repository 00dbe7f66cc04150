"""Pictures in tars ("shards") in webdataset's form, on a disk or behind a URL."""

from __future__ import annotations

import bisect
import itertools
import json
import tarfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from regard._problem import Problem
from regard.pictures._read import read
from regard.pictures._shard_cache import CacheSettings, ReadAhead, ShardCache
from regard.pictures._shard_index import INDEX_FORMAT, TAR_BLOCK, ShardIndex
from regard.pictures._shard_list import INDEX, MANIFEST, Shard, index_name, indexed_shards, listed_shards
from regard.pictures._shard_names import braces, is_tar, split
from regard.pictures._sources import Unreadable
from regard.pictures._store import PATIENCE, STALE, Store

_FIRST_PATIENCE = 20.0  # seconds for a server that has not answered yet: its name may be wrong
_KEPT = 64  # indexes of shards in memory


class Tars:
    """The pictures of tar files ("shards") named as webdataset does: key.jpg, and key.cls with its label.

    Shards are read in place, on a disk or behind any URL that fsspec knows. What is kept in memory is a number per
    shard; the index of a shard, 16 bytes a picture, is loaded when the shard is used. It is beside the shards if
    `regard index` was run, else each shard is read once and its index kept in the cache. A picture of a server is read
    from the cached shard, or by a request for its bytes while the shard is not there. Labels are used only if all
    pictures have one. Of a broken tar what is whole is used; a compressed one is a broken one.

    `shards`: paths or URLs of tars in one folder.
    `cache`: where shards and indexes are kept on this machine; default `CacheSettings()`.
    `patience`: seconds for which a server that fails is asked again; default 300.
    `say`: called with a line before shards are read for their indexes; default None.

    >>> import io, tarfile, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/0.tar", "w") as tar:
    ...         png = io.BytesIO()
    ...         Image.new("RGB", (6, 4)).save(png, "png")
    ...         for name, content in (("a.png", png.getvalue()), ("a.cls", b"7")):
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(content)
    ...             tar.addfile(member, io.BytesIO(content))
    ...     pictures = Tars([f"{folder}/0.tar"], cache=CacheSettings(Path(folder)))
    ...     pictures[0].shape, pictures.classes
    (torch.Size([3, 4, 6]), ['7'])
    """

    def __init__(
        self,
        shards: Sequence[Path | str],
        *,
        cache: CacheSettings | None = None,
        patience: float = PATIENCE,
        say: Callable[[str], None] | None = None,
    ) -> None:
        places = [Store(*split(shard)[:1], patience) for shard in shards[:1]]
        if not places or {split(shard)[0] for shard in shards} != {split(shards[0])[0]}:
            raise Problem(f"{len(shards)} shards in several folders, or none. Name tars of one folder.")
        self._begin(places[0], cache or CacheSettings())
        self._take(self._indexed([split(shard)[1] for shard in shards], say), say)

    @classmethod
    def at(
        cls,
        place: Path | str,
        *,
        cache: CacheSettings | None = None,
        patience: float = PATIENCE,
        say: Callable[[str], None] | None = None,
        indexed: bool = True,
    ) -> Tars:
        """The shards of a folder, of a URL of a folder, or of a URL of tars: .../0.tar, .../{000..127}.tar.

        `place`: the folder or the tars.
        `cache`, `patience`, `say`: as in `Tars`.
        `indexed`: use the index beside the shards, if there is one; default True.
        """
        if is_tar(place):
            base, name = split(place)
            return cls([f"{base}/{one}" for one in braces(name)], cache=cache, patience=patience, say=say)
        source = cls.__new__(cls)
        source._begin(Store(place, patience), cache or CacheSettings())
        listed = listed_shards(source.store) if indexed else None
        if listed is None:
            names = list(source.store.names(".tar"))
            if not names:
                raise Problem(f"{place} holds no tars. Name a folder with shards such as 0000.tar.")
            listed = source._indexed(names, say)
        source._take(listed, say)
        return source

    def _indexed(self, names: list[str], say: Callable[[str], None] | None) -> list[Shard]:
        return indexed_shards(self.store, self.cache_settings.place / "index", names, say)

    def _begin(self, store: Store, cache: CacheSettings) -> None:
        self.store, self.cache_settings = store, cache
        self._patience, store.patience = store.patience, min(store.patience, _FIRST_PATIENCE)
        self._cache = ShardCache(cache.place / "shards", cache.limit)
        self._kept: OrderedDict[int, ShardIndex] = OrderedDict()
        self._ahead: ReadAhead | None = None
        self._labels: list[int] | None = None

    def _take(self, shards: list[Shard], say: Callable[[str], None] | None) -> None:
        self.shards = shards
        self.store.patience = self._patience
        self.counts = [shard.header.pictures for shard in shards]
        self._starts = [0, *itertools.accumulate(self.counts)]
        broken = self.broken()
        if not self._starts[-1] and broken:
            raise Problem(f"{next(iter(broken.values()))} Unpack or make it again without compression.")
        if not self._starts[-1]:
            names = ", ".join(self.store.at(shard.name) for shard in shards[:3])
            raise Problem(f"{names}: no pictures in it. A tar needs files such as 0001.jpg.")
        if broken and say is not None:
            first, *others = broken.values()
            more = f" And {len(others)} more." if others else ""
            say(f"{len(broken)} of {len(shards)} shards are broken, and used as far as they are whole: {first}{more}")
        self.labelled = all(shard.header.labelled or not shard.header.pictures for shard in shards)
        known = {name for shard in shards for name in shard.header.classes} if self.labelled else set()
        self.classes = sorted(known, key=lambda c: (not c.isdigit(), int(c) if c.isdigit() else 0, c))

    def __getstate__(self) -> dict[str, Any]:
        """Without threads, which no other process can have."""
        return {**self.__dict__, "_ahead": None}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Tensor:
        content = self._content(*self._place(index))
        try:
            return read(content)
        except Problem:  # once more with the name, which costs a read of its own
            return read(content, name=self.name(index))

    @property
    def labels(self) -> list[int] | None:
        """The class of each picture, read from all indexes at the first use; None without labels."""
        if self.labelled and self._labels is None:
            number = {name: i for i, name in enumerate(self.classes)}
            self._labels = []
            for i in range(len(self.shards)):
                index = self._index(i)
                names = [number[name] for name in index.header.classes]
                self._labels += [names[label] for label in index.records["label"].tolist()]
        return self._labels

    def name(self, index: int) -> str:
        """The shard and the name inside it, as far as it can be read."""
        number, position = self._place(index)
        shard = self.shards[number]
        try:
            # The block before the content is the last of its headers, with the name or with its first 100 letters.
            start = int(self._index(number).records["block"][position]) * TAR_BLOCK
            inside = tarfile.TarInfo.frombuf(
                self._bytes(number, start - TAR_BLOCK, start), "utf-8", "surrogateescape"
            ).name
        except Exception:  # a name is for messages: it must not be another error
            inside = f"picture {position}"
        return f"{self.store.at(shard.name)}:{inside}"

    def parts(self) -> list[tuple[str, int, str]]:
        """What a digest is made of: name, pictures and digest of the index of each shard, wherever they are."""
        return [(shard.name, shard.header.pictures, shard.header.digest) for shard in self.shards]

    def ahead(self, shards: Sequence[int]) -> None:
        """Say which shards are used next: threads of this process copy them into the cache."""
        if self.store.is_local or not self.cache_settings.limit:
            return
        if self._ahead is None:
            self._ahead = ReadAhead(self._bring)
        self._ahead.want(shards)

    def broken(self) -> dict[str, str]:
        """The shards of which not all can be read, and why, as it was when they were indexed."""
        return {
            (place := self.store.at(shard.name)): f"{place} is not a plain tar ({shard.header.broken})."
            for shard in self.shards
            if shard.header.broken
        }

    def faults(self) -> list[tuple[str, str]]:
        """URLs and errors of what had to be asked for again in this process, since the last call."""
        return self.store.faults()

    def write_index(self) -> str:
        """Write the index beside the shards, and return where: whoever opens them then reads no shard for it."""
        for i, shard in enumerate(self.shards):
            self.store.write(index_name(shard.name), self._index(i).to_bytes())
        entries = [[shard.name, shard.size, json.loads(shard.header.to_bytes())] for shard in self.shards]
        self.store.write(MANIFEST, json.dumps({"format": INDEX_FORMAT, "shards": entries}).encode())
        return self.store.at(INDEX)

    def _place(self, index: int) -> tuple[int, int]:
        """The number of the shard of a picture, and its position in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"picture {index} of {len(self)}")
        number = bisect.bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def _content(self, number: int, position: int) -> bytes:
        """The bytes of a picture, as they were when the index was made."""
        try:
            record = self._index(number).records[position]
            start, size, crc = int(record["block"]) * TAR_BLOCK, int(record["size"]), int(record["crc"])
            content = self._bytes(number, start, start + size)
            if zlib.crc32(content) != crc and not self.store.is_local:
                self._cache.drop(self._key(number))  # a disk may have lost what was copied
                content = self._bytes(number, start, start + size)
        except (FileNotFoundError, _Stale) as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else str(error)
            place = self.store.at(self.shards[number].name)
            raise Unreadable(f"{place} {why}. {STALE}", place, self._beyond(number, position)) from error
        if zlib.crc32(content) != crc:
            inside = self.name(self._starts[number] + position)
            raise Problem(f"{inside} is not what it was when the shard was indexed. {STALE}")
        return content

    def _bytes(self, number: int, start: int, stop: int) -> bytes:
        """Bytes of a shard: of the file, of the cached one, or by a request."""
        shard = self.shards[number]
        if self.store.is_local:
            content = self.store.read(shard.name, start, stop)
            if len(content) != stop - start:
                raise _Stale("is shorter than its index says")
            return content
        if self.store.whole_only and self.cache_settings.limit:
            self._bring(number, [number])
        if (path := self._cache.use(self._key(number))) is not None:
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(stop - start)
            except FileNotFoundError:  # it has just given way to another
                pass
        return self.store.read(shard.name, start, stop)

    def _beyond(self, number: int, position: int) -> int:
        """The picture at the same place of the next shard, which replaces one whose shard cannot be read."""
        following = next(
            i % len(self.counts)
            for i in range(number + 1, number + 1 + len(self.counts))
            if self.counts[i % len(self.counts)]
        )
        return self._starts[following] + position % self.counts[following]

    def _key(self, number: int) -> str:
        """What a cached shard is known by: its URL and its content."""
        shard = self.shards[number]
        return f"{shard.header.digest}/{self.store.at(shard.name)}"

    def _bring(self, number: int, wanted: Sequence[int]) -> bool:
        shard = self.shards[number]
        keep = [self._key(other) for other in wanted]
        return self._cache.bring(
            self._key(number), shard.size, lambda path: self.store.copy(shard.name, shard.size, path), keep
        )

    def _index(self, number: int) -> ShardIndex:
        """The index of a shard, from the few that are kept in memory or from its file."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        shard = self.shards[number]
        if isinstance(shard.index, Path):
            content = shard.index.read_bytes()
        else:
            content = self.store.read(shard.index, 0, shard.header.index_bytes)
        try:
            index = ShardIndex.from_bytes(content)
            if index.header != shard.header:
                raise ValueError("another digest")
        except (ValueError, KeyError, TypeError) as error:
            place = shard.index if isinstance(shard.index, Path) else self.store.at(shard.index)
            raise Problem(f"{place} is not the index of {shard.name} ({error}). {STALE}") from error
        self._kept[number] = index
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return index


class _Stale(Exception):
    """A shard is not the one of the index."""
