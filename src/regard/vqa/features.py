"""Features made by a backbone, once, into a store that can be resumed, extended and repaired."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard._stop import Stop
from regard.backbones import Backbone, fingerprint, load_backbone, make_backbone, save_backbone
from regard.backbones._known import SMALL_SIZES
from regard.training._together import Together
from regard.vqa.description import UNNAMED, FeatureDescription
from regard.vqa.feature_store import FeatureStore as FeatureStore
from regard.vqa.filling import empty_store, make_rows, start_store, waiting_rows
from regard.vqa.manifest import HERE, Manifest
from regard.vqa.records import Skipped

_COMMIT = 2.0  # seconds between commits: each waits for the disk
_CPU_BATCH, _GPU_BATCH = 4, 64  # pictures per batch: on a CPU large ones only take fresh memory


def make_features(
    folder: Path | str,
    pictures: Mapping[str, Path | Tensor],
    backbone: Backbone,
    *,
    name: str = UNNAMED,
    stages: bool = False,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    untrained: bool = False,
    fresh: bool = False,
    group: Together | None = None,
) -> tuple[FeatureStore, Skipped]:
    """Run a backbone once over pictures and store the grids; return the store, and notes on unreadable pictures.

    Rerun to resume, with the same backbone: what was made in the last two seconds may be computed again. New pictures
    are added; rows are made again for pictures whose content has changed, and for unreadable ones that have. The row of
    a picture that cannot be read stays empty.

    `folder`: the folder of the store.
    `pictures`: name to path, or to a tensor (3, H, W) uint8.
    `backbone`: in any mode; it is put into evaluation mode for the call.
    `name`: the backbone's name or folder, from which it can be loaded; default "backbone", which cannot.
    `stages`: store the maps of all stages, see `grids`; default False.
    `batch`: pictures per forward pass; default 4 on a CPU, 64 on other devices.
    `progress`: called after each batch with the pictures done and to do; default None.
    `untrained`: whether the backbone's weights are random, for the description; default False.
    `fresh`: start over, whatever the folder has; default False.
    `group`: processes that share the work: each makes rows of its own in a part of the folder (`regard.vqa.manifest`),
        which is read as one store; all need the same pictures and see the same disk. Default None, this one alone.

    >>> import tempfile
    >>> from regard.backbones import make_backbone
    >>> pictures = {"a": torch.zeros(3, 16, 16, dtype=torch.uint8), "b": torch.ones(3, 16, 16, dtype=torch.uint8)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store, skipped = make_features(folder, pictures, make_backbone("small", widths=[4], depths=[1], size=16))
    >>> store.names, bool(skipped)
    (('a', 'b'), False)
    """
    folder = Path(folder)
    check_pictures(pictures, folder)
    group = group or Together()
    training = backbone.training
    backbone.eval()
    skipped = Skipped()
    description = FeatureDescription.of(backbone, name, stages, untrained)
    try:
        with writing_to(folder), disk_in_words(folder):
            parts = group.first_says(_plan(folder, pictures, group, fresh) if group.first else None)
            for place, names in group.shares(parts):
                mine = pictures if names is None else {name: pictures[name] for name in names if name in pictures}
                empty = empty_store(folder / place, backbone, description)
                _fill(empty, mine, backbone, batch, progress, skipped, fresh and names is None)
            skipped.notes[:] = [note for notes in group.gather(skipped.notes) for note in notes]
    finally:
        backbone.train(training)
    return FeatureStore.open(folder), skipped


def _plan(
    folder: Path, pictures: Mapping[str, Path | Tensor], group: Together, fresh: bool
) -> list[tuple[str, tuple[str, ...] | None]]:
    """The folders to fill with the names of their pictures; None for all, where one process makes a store alone."""
    manifest = Manifest.read(folder)
    if fresh:
        manifest.remove()
        manifest = Manifest(folder)
    if group.size == 1 and not manifest.parts:
        return [(HERE, None)]
    here: tuple[str, ...] = ()
    if not manifest.parts and (folder / "store.json").is_file():
        if fresh:
            (folder / "store.json").unlink()
        else:
            here = FeatureStore.open_part(folder).names
    manifest = manifest.with_names(pictures, group.size, here)
    manifest.write()
    return list(manifest.parts)


def _fill(
    store: FeatureStore,
    pictures: Mapping[str, Path | Tensor],
    backbone: Backbone,
    batch: int | None,
    progress: Callable[[int, int], None] | None,
    skipped: Skipped,
    fresh: bool,
) -> None:
    """Make the rows that a part lacks; `store` is an empty one with its folder."""
    folder, made = store.folder, 0
    batch = batch or (_CPU_BATCH if next(backbone.parameters()).device.type == "cpu" else _GPU_BATCH)

    def kept() -> str:
        size = len(pictures) * store.width * 2
        return f"Features of {len(pictures)} pictures take {size / 1e6:.0f} MB." + (
            f" {made} of them are kept." if made else ""
        )

    with disk_in_words(folder, kept), Stop() as stop:
        folder.mkdir(parents=True, exist_ok=True)
        store, writer = start_store(store, pictures, fresh)
        with closing(writer), writer:
            waiting = waiting_rows(store, pictures, skipped)
            committed = time.monotonic()
            for start in range(0, len(waiting), batch):
                part = waiting[start : start + batch]
                make_rows(store, [(row, pictures[store.names[row]]) for row in part], backbone, writer, skipped)
                if stop.requested or time.monotonic() - committed > _COMMIT:
                    writer.commit()
                    committed, made = time.monotonic(), start + len(part)
                if progress:
                    progress(start + len(part), len(waiting))
                if stop.requested:
                    stop.kept = f"{start + len(part)} of {len(waiting)} pictures are kept in {folder}"
                    break


def check_pictures(pictures: Mapping[str, Path | Tensor], folder: Path) -> None:
    """Raise a Problem if there is nothing to make features of: no pictures, or none that is where it should be."""
    if not pictures:
        raise Problem(f"there are no pictures to make features of for {folder}. Check where the pictures are.")
    if not any(isinstance(picture, Tensor) or picture.is_file() for picture in pictures.values()):
        first = next(iter(pictures.values()))
        raise Problem(f"none of the {len(pictures)} pictures is there, such as {first}. Check the path: --pictures")


def kept_backbone(
    folder: Path, name: str, size: int | None = None, seed: int | None = None, *, fresh: bool = False
) -> tuple[Backbone, Path]:
    """The backbone in a folder, and the folder; made by `name` and saved there if the folder has none.

    A Problem if the folder has another one: it is overwritten only if that is asked for.

    `folder`: where the backbone is, or is saved.
    `name`: what `make_backbone` takes.
    `size`: the side of its input in pixels; default that of `make_backbone`.
    `seed`: of the random weights of an untrained backbone. Default None: an untrained one in the folder with the same
        architecture is used whatever its weights; a new one is seeded with 0.
    `fresh`: overwrite another one; default False.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        backbone = make_backbone(name, size=size)
    if fresh or not (folder / "config.json").is_file():
        return backbone, save_backbone(backbone, folder)
    stored = load_backbone(folder)
    any_weights = seed is None and is_untrained(name) and stored.config == backbone.config
    if not any_weights and fingerprint(stored) != fingerprint(backbone):
        raise Problem(
            f"{folder} keeps the backbone that its features were made by (fingerprint {fingerprint(stored)}), and "
            f"{name} is another (fingerprint {fingerprint(backbone)}). Store its features elsewhere (--out), name the "
            f"one that is there (--backbone {folder}), or start over: --fresh"
        )
    return stored, folder


def is_untrained(name: str) -> bool:
    """Whether a backbone of this name has random weights.

    >>> is_untrained("small"), is_untrained("efficientnet-lite0")
    (True, False)
    """
    return name in SMALL_SIZES
