"""Labelled pictures for fine-tuning: which to learn from, and which are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem
from regard.pictures import Pictures, as_pictures
from regard.training import generator

TRAIN_FOLDER, TEST_FOLDERS = "train", ("val", "validation", "test")  # folders of a set that is split already
_FOLDERS = "Put the pictures in one folder for each class."
_HOLD_OUT, _LABELS = 501, 502  # keys of the random numbers


class Subset:
    """Some pictures of a labelled source, as a source; labels are numbers of `classes`.

    `source`: pictures with labels.
    `indices`: of the pictures, in order.
    `classes`: names that the source's classes are looked up in; default those of the source.

    >>> from regard.pictures import Arrays
    >>> part = Subset(Arrays(torch.zeros(3, 2, 2), [0, 1, 1], ["cat", "dog"]), [2, 0])
    >>> len(part), part.labels, part.name(0)
    (2, [1, 0], 'picture 2')
    """

    def __init__(self, source: Pictures, indices: Sequence[int], classes: Sequence[str] = ()) -> None:
        if source.labels is None:
            raise Problem(f"these pictures have no labels. {_FOLDERS}")
        self.source, self.indices = source, list(indices)
        self.classes = list(classes) or list(source.classes)
        number = {name: i for i, name in enumerate(self.classes)}
        self.labels: list[int] | None = [number[source.classes[source.labels[i]]] for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Tensor:
        return self.source[self.indices[index]]

    def name(self, index: int) -> str:
        """The name of the picture in messages."""
        return self.source.name(self.indices[index])


@dataclass(frozen=True)
class Labelled:
    """Labelled pictures to learn from, and those to test on; the same source if a part of it is to be held out.

    >>> from regard.pictures import Arrays
    >>> one = Arrays(torch.zeros(4, 2, 2), [0, 1, 0, 1])
    >>> Labelled(one, one).drawn
    True
    """

    learn: Pictures
    test: Pictures

    @property
    def drawn(self) -> bool:
        """Whether the pictures to test on are a part of those to learn from, to be drawn."""
        return self.learn is self.test

    def split(self, held_out: float, labels: float, seed: int) -> LabelSplit:
        """Draw what is held out, if anything is to be, and the share of labels that are learned from.

        `held_out`: share of each class, at least one picture of each that has two; not used if the set is split.
        `labels`: share of what is left of each class, at least one picture.
        `seed`: of both choices.
        """
        known = self.learn.labels or []
        test = list(range(len(self.test)))
        learn = list(range(len(self.learn)))
        if self.drawn:
            test = stratified(known, learn, held_out, seed, _HOLD_OUT, spare=1)
            learn = sorted(set(learn) - set(test))
        if not test:
            raise Problem("no class has two pictures, so none can be held out. Give more pictures, or --test.")
        return LabelSplit(stratified(known, learn, labels, seed, _LABELS, least=1), test, len(learn))


@dataclass(frozen=True)
class LabelSplit:
    """Numbers of the pictures that are learned from and of those that are tested on; `labelled` could be learned from.

    >>> LabelSplit.from_json(LabelSplit([0, 2], [1], 3).to_json())
    LabelSplit(learn=[0, 2], test=[1], labelled=3)
    """

    learn: list[int]
    test: list[int]
    labelled: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"learn": self.learn, "test": self.test, "labelled": self.labelled}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> LabelSplit:
        """The inverse of `to_json`."""
        learn, test = ([int(i) for i in written[name]] for name in ("learn", "test"))
        return cls(learn, test, int(written["labelled"]))


def open_labelled(data: Any, test: Any = None) -> Labelled:
    """Labelled pictures from a path or a source, checked: several classes, and none in the test set alone.

    `data`: a path, a tensor or a source of `regard.pictures`. A folder with the folders `train` and `val` (or
        `validation`, `test`) is split already.
    `test`: pictures to test on; default None, those of that folder, or a part of `data` to be drawn.
    """
    if test is None and isinstance(data, str | Path):
        folder = Path(data)
        beside = [folder / name for name in TEST_FOLDERS if (folder / name).is_dir()]
        if (folder / TRAIN_FOLDER).is_dir() and beside:
            data, test = folder / TRAIN_FOLDER, beside[0]
    learn = as_pictures(data)
    held_out = learn if test is None else as_pictures(test)
    for source, what in ((learn, data), (held_out, test)):
        if source.labels is None:
            named = f"{what}: " if isinstance(what, str | Path) else ""
            raise Problem(f"{named}these pictures have no labels, or all the same one. {_FOLDERS}")
    present = {learn.classes[label] for label in learn.labels or []}
    if len(present) < 2:
        raise Problem(f"all pictures are of the class {min(present, default='none')!r}. {_FOLDERS}")
    if missing := {held_out.classes[label] for label in held_out.labels or []} - present:
        names = ", ".join(sorted(missing)[:5]) + (", ..." if len(missing) > 5 else "")
        raise Problem(f"the pictures to test on have classes that those to learn from lack: {names}. Add or move them.")
    return Labelled(learn, held_out)


def stratified(
    labels: Sequence[int],
    among: Sequence[int],
    share: float,
    seed: int,
    key: int,
    *,
    least: int = 0,
    spare: int = 0,
) -> list[int]:
    """A random share of each class, as sorted indices.

    `labels`: of all samples.
    `among`: samples to draw from.
    `share`: of each class, rounded, but not to zero.
    `seed`, `key`: of the choice.
    `least`: at least so many of a class; default 0.
    `spare`: leave at least so many of a class, before `least`; default 0.

    >>> stratified([0, 0, 0, 0, 1], range(5), 0.5, seed=0, key=1, least=1)[-1]
    4
    """
    members: dict[int, list[int]] = {}
    for i in among:
        members.setdefault(labels[i], []).append(i)
    chosen: list[int] = []
    for label, group in sorted(members.items()):
        count = max(least, min(max(1, round(share * len(group))), len(group) - spare))
        order = torch.randperm(len(group), generator=generator(seed, key, label)).tolist()
        chosen += [group[i] for i in order[:count]]
    return sorted(chosen)
