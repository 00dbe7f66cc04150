"""The rows of a feature store as they are made: which wait, because they are new or their pictures changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard._files import replacing, reserve
from regard._problem import Problem
from regard.backbones import Backbone
from regard.pictures import read
from regard.training._device import sent
from regard.vqa.description import FeatureDescription
from regard.vqa.feature_store import BROKEN, MADE, WAITING, FeatureStore
from regard.vqa.grids import grids
from regard.vqa.origins import ORIGIN, Origin, as_row, hash_of, is_another
from regard.vqa.records import Skipped
from regard.vqa.rows import RowWriter


def empty_store(folder: Path, backbone: Backbone, description: FeatureDescription) -> FeatureStore:
    """A store without pictures; nothing is written."""
    with torch.inference_mode():
        size, device = backbone.preparation.size, next(backbone.parameters()).device
        blank = torch.zeros(1, 3, size, size, device=device)
        _, height, width, dim = grids(backbone, blank, description.stages).shape
    return FeatureStore(folder, (), (height, width, dim), description)


def start_store(
    empty: FeatureStore, pictures: Mapping[str, Path | Tensor], fresh: bool
) -> tuple[FeatureStore, RowWriter]:
    """The store in the folder, or a new one, with rows for all pictures and space for them on the disk."""
    store = empty
    if fresh:
        (empty.folder / "store.json").unlink(missing_ok=True)
    elif (empty.folder / "store.json").is_file():
        store = FeatureStore.open_part(empty.folder, expected=empty.description)
    names = (*store.names, *(name for name in pictures if name not in store.numbers))
    places = dict(zip(store.names, store.paths, strict=False))
    places |= {n: "" if isinstance(p, Tensor) else str(p.absolute()) for n, p in pictures.items()}
    paths = tuple(places.get(name, "") for name in names)
    widths = {store.features_file: store.width * 2, store.origins_file: ORIGIN.itemsize, store.state_file: 1}
    for file, width in widths.items():
        with file.open("r+b" if file.is_file() else "w+b") as opened:
            # What lies behind the last row is of a process that was killed before the row counted.
            known = len(store.names) * width
            if opened.seek(0, 2) > known:
                opened.truncate(known)
            reserve(opened, len(names) * width)
    if (names, paths) != (store.names, store.paths):
        features = store.description.to_json()
        content = {"names": names, "paths": paths, "shape": store.shape, "features": features, "dtype": "float16"}
        with replacing(store.folder / "store.json") as beside:
            beside.write_text(json.dumps(content))
    moved = frozenset(n for n, before in zip(store.names, store.paths, strict=False) if places[n] != before)
    opened_store = FeatureStore.open_part(store.folder)
    writer = RowWriter(store.features_file, store.origins_file, store.state_file, store.width * 2)
    try:
        _mark_changes(opened_store, pictures, moved, writer)
    except BaseException:
        writer.close()
        raise
    return FeatureStore.open_part(store.folder), writer


def _mark_changes(
    store: FeatureStore, pictures: Mapping[str, Path | Tensor], moved: frozenset[str], writer: RowWriter
) -> None:
    """Let rows wait again whose pictures have changed."""
    for name, picture in pictures.items():
        row = store.numbers[name]
        if store.state[row] == WAITING:
            continue
        before, now = store.origins[row], Origin.of(picture)
        if is_another(before, now, picture, name in moved):
            writer.mark_now(row, WAITING)
        elif (before.size, before.time) != (now.size, now.time) and now.size >= 0:
            # As it was, with another time; or of an older store, whose pictures are taken to be unchanged.
            content = now.content or before.content
            writer.mark(row, int(store.state[row]), as_row(Origin(now.size, now.time, content)).tobytes())
    writer.commit()


def waiting_rows(store: FeatureStore, pictures: Mapping[str, Path | Tensor], skipped: Skipped) -> list[int]:
    """The rows to make, in order; pictures that could not be read before are noted."""
    rows = sorted(store.numbers[name] for name in pictures)
    for row in rows:
        if store.state[row] == BROKEN:
            skipped.add("picture that cannot be read", f"{store.names[row]} (met before)")
    return [row for row in rows if store.state[row] == WAITING]


def make_rows(
    store: FeatureStore,
    part: Sequence[tuple[int, Path | Tensor]],
    backbone: Backbone,
    writer: RowWriter,
    skipped: Skipped,
) -> None:
    """Compute and write the rows of a batch."""
    ready = []
    for row, picture in part:
        origin = Origin.of(picture)
        try:
            pixels, origin = _read(picture, origin)
            ready.append((row, backbone.prepare(pixels[None]), origin))
        except Problem as problem:
            skipped.add("picture that cannot be read", str(problem))
            writer.mark(row, BROKEN, as_row(origin).tobytes())
    if not ready:
        return
    device = next(backbone.parameters()).device
    with torch.inference_mode():
        features = grids(backbone, sent(torch.cat([x for _, x, _ in ready]), device), store.description.stages)
    for (row, _, origin), content in zip(ready, features.reshape(len(ready), -1).half().cpu().numpy(), strict=True):
        writer.put(row, content.tobytes())
        writer.mark(row, MADE, as_row(origin).tobytes())


def _read(picture: Path | Tensor, origin: Origin) -> tuple[Tensor, Origin]:
    """A picture, and its origin with the hash of the very bytes that it was decoded from."""
    if isinstance(picture, Tensor):
        return picture, origin
    try:
        content = picture.read_bytes()
    except OSError:
        return read(picture), origin  # which says what is wrong
    return read(content, name=str(picture)), Origin(origin.size, origin.time, hash_of(content))
