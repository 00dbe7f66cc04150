"""Stored features of labelled pictures: their names, what is held out, and batches of them for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem
from regard.pictures import Arrays, Pictures
from regard.pictures._sources import Files
from regard.swav._labelled import Labelled, LabelSplit
from regard.vqa.feature_store import FeatureStore
from regard.vqa.records import Skipped

_READ = 64  # pictures that are read at a time


@dataclass(frozen=True)
class LabelledNames:
    """Pictures with names in a feature store: what is learned from and what is held out, each with its class.

    >>> part = LabelledNames(("cat/1.jpg", "dog/1.jpg"), (0, 1))
    >>> part.without({"cat/1.jpg"})
    LabelledNames(names=('dog/1.jpg',), labels=(1,))
    """

    names: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def without(self, left_out: set[str]) -> LabelledNames:
        """Without some pictures."""
        kept = [(n, label) for n, label in zip(self.names, self.labels, strict=True) if n not in left_out]
        return LabelledNames(tuple(n for n, _ in kept), tuple(label for _, label in kept))


def named_pictures(labelled: Labelled) -> dict[str, Path | Tensor]:
    """All pictures by the names that they have in the store: folder of the split, if there are two, class and file."""
    pictures: dict[str, Path | Tensor] = {}
    for source in _sources(labelled):
        names = _names(source, labelled)
        for number, name in enumerate(names):
            pictures[name] = source.paths[number] if isinstance(source, Files) else source[number]
    return pictures


def split_names(labelled: Labelled, split: LabelSplit) -> tuple[LabelledNames, LabelledNames]:
    """What is learned from, and what is held out."""
    classes = {name: number for number, name in enumerate(labelled.learn.classes)}
    parts = []
    for source, chosen in ((labelled.learn, split.learn), (labelled.test, split.test)):
        names, labels = _names(source, labelled), source.labels or []
        numbers = [classes[source.classes[labels[i]]] for i in chosen]
        parts.append(LabelledNames(tuple(names[i] for i in chosen), tuple(numbers)))
    return parts[0], parts[1]


def _sources(labelled: Labelled) -> list[Pictures]:
    return [labelled.learn] if labelled.drawn else [labelled.learn, labelled.test]


def _names(source: Pictures, labelled: Labelled) -> list[str]:
    """The names of a source's pictures: unique among both sources."""
    held_out = not labelled.drawn and source is labelled.test
    if isinstance(source, Files):
        names = [path.relative_to(source.folder).as_posix() for path in source.paths]
        before = "" if labelled.drawn else f"{source.folder.resolve().name}/"
        if held_out and isinstance(labelled.learn, Files):
            if source.folder.resolve() == labelled.learn.folder.resolve():
                raise Problem(f"{source.folder} is to be learned from and to be tested on. Name another folder: --test")
            if source.folder.resolve().name == labelled.learn.folder.resolve().name:
                before = f"held-out/{before}"
        return [f"{before}{name}" for name in names]
    if not isinstance(source, Arrays):
        raise Problem(
            f"{type(source).__name__} of pictures cannot be classified. Unpack them: a folder of files per class."
        )
    return [f"{'held-out ' if held_out else ''}{source.name(i)}" for i in range(len(source))]


class FeatureBatches:
    """Stored features of pictures with their labels, as data for `fit`.

    `averaged`: the mean over the cells in place of them, (B, 1, 1, D), read once: for average pooling; default False.
    """

    def __init__(self, store: FeatureStore, pictures: LabelledNames, *, averaged: bool = False) -> None:
        """Remember what to read."""
        self.store, self.pictures = store, pictures
        self.averages = averages_of(store, pictures.names)[:, None, None] if averaged else None

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, indices: list[int], epoch: int) -> dict[str, Any]:
        """Features (B, h, w, D) and labels (B,)."""
        labels = torch.tensor([self.pictures.labels[i] for i in indices])
        if self.averages is not None:
            return {"features": self.averages[indices], "labels": labels}
        return {"features": self.store[[self.pictures.names[i] for i in indices]], "labels": labels}


def averages_of(store: FeatureStore, names: Sequence[str]) -> Tensor:
    """The features of pictures averaged over their cells, (n, D)."""
    parts = [store[names[start : start + _READ]].mean((1, 2)) for start in range(0, len(names), _READ)]
    return torch.cat(parts) if parts else torch.zeros(0, store.shape[2])


def usable_names(
    store: FeatureStore, learn: LabelledNames, held_out: LabelledNames, skipped: Skipped
) -> tuple[LabelledNames, LabelledNames]:
    """Without pictures that cannot be read, and without held-out copies of pictures that are learned from.

    `skipped`: gets a note on each copy; the others were noted when the features were made.
    """
    unreadable = {name for name in (*learn.names, *held_out.names) if not store.has(name)}
    learn, held_out = learn.without(unreadable), held_out.without(unreadable)
    known = {content: name for name, content in zip(learn.names, store.contents(learn.names), strict=True) if content}
    copies = {}
    for name, content in zip(held_out.names, store.contents(held_out.names), strict=True):
        if content in known:
            copies[name] = known[content]
            skipped.add("held-out copy", f"{name} has the content of {known[content]}, which is learned from")
    held_out = held_out.without(set(copies))
    if len(set(learn.labels)) < 2:
        raise Problem("fewer than two classes have pictures that can be read. Check the files.")
    if not len(held_out):
        raise Problem("none of the held-out pictures can be read, or all are copies of others. Add pictures.")
    return learn, held_out
