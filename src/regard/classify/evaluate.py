"""A trained head on held-out pictures: which are right, and how its attention fits the masks of their objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from regard._problem import Problem
from regard.classify.features import LabelledNames
from regard.classify.head import ClassifierHead
from regard.classify.summary import LOOK_MEASURES, Estimated, PoolResult
from regard.continuous.members import on_cpu
from regard.training._device import sent
from regard.vqa.attention_quality import AttentionQuality, concatenate, quality_of
from regard.vqa.feature_store import FeatureStore
from regard.vqa.masks import Masks, check_folder
from regard.vqa.records import Record, Skipped
from regard.vqa.regions import Regions
from regard.vqa.resampling import resampled_interval

_BATCH = 64  # pictures at a time


@dataclass(frozen=True)
class HeldOut:
    """A head on held-out pictures: whether each is right (n,), and the quality of its attention, if there are masks."""

    right: Tensor
    quality: AttentionQuality | None


class ObjectMasks:
    """The masks of objects in pictures, found by the pictures' names; `masks(start, stop)` are regions (B, H, W).

    A mask is a picture that is bright where the object is, of any size, in a folder with the same names: that of
    `val/cat/12.jpg` is `val/cat/12.png`, `cat/12.png` or `12.png`.
    """

    def __init__(self, folder: Path, names: Sequence[str], skipped: Skipped) -> None:
        """Look for the masks of pictures.

        `folder`: where they are.
        `names`: of the pictures.
        `skipped`: gets a note on each that is missing or cannot be read.
        """
        check_folder("--masks", folder)
        found = Masks(folder, by_name=True)
        self.records = [Record(n, n, "", regions=found.named(None, n, n, skipped)) for n in names]
        owners: dict[Path, str] = {}
        for record in self.records:
            for region in record.regions or ():
                path = found.found[str(region)]
                if (other := owners.setdefault(path, record.picture)) != record.picture:
                    raise Problem(
                        f"{path} would be the mask of {other} and of {record.picture}. Put the masks in a folder for "
                        "each class, as the pictures are."
                    )
        if not owners:
            raise Problem(
                f"--masks {folder} has no mask for any held-out picture, such as {names[0]}. Check the names."
            )
        self.regions = Regions(self.records, {}, found.found, skipped)

    def __call__(self, start: int, stop: int) -> Tensor:
        """Regions (B, H, W), boolean, of the pictures from `start` to before `stop`; empty ones if there is no mask."""
        return self.regions(self.records[start:stop])

    def batches(self) -> Iterator[Tensor]:
        """All of them, some at a time."""
        for start in range(0, len(self.records), _BATCH):
            yield self(start, start + _BATCH)


@torch.no_grad()
def evaluate_head(
    head: ClassifierHead, store: FeatureStore, held_out: LabelledNames, masks: ObjectMasks | None = None
) -> HeldOut:
    """Classify held-out pictures by their stored features, and compare the attention with their masks.

    `head`: put into evaluation mode.
    `store`: the features.
    `held_out`: the pictures with their classes.
    `masks`: of these pictures; default None.
    """
    head.eval()
    device = next(head.parameters()).device
    right, parts = [], []
    for start in range(0, len(held_out), _BATCH):
        names = held_out.names[start : start + _BATCH]
        scores, looked = head(sent(store[names], device))
        right.append(scores.argmax(-1).cpu() == torch.tensor(held_out.labels[start : start + _BATCH]))
        if masks is not None:
            weights = looked.weights.float().cpu().reshape(-1, *head.cells)
            density = None if looked.density is None else on_cpu(looked.density)
            parts.append(quality_of(weights, density, masks(start, start + _BATCH)))
    return HeldOut(torch.cat(right), concatenate(parts) if parts else None)


def result_of(
    evaluated: HeldOut, average: HeldOut | None, held_out: LabelledNames, classes: int, seconds: float | None
) -> PoolResult:
    """The numbers of a pool.

    `evaluated`: it on the held-out pictures.
    `average`: average pooling on the same; None if it is that.
    `held_out`: the pictures.
    `classes`: how many.
    `seconds`: of the training.
    """
    labels = torch.tensor(held_out.labels)
    by_class = labels[evaluated.right].bincount(minlength=classes)
    difference = None
    if average is not None:
        points = 100.0 * (evaluated.right.double() - average.right.double())
        difference = _mean(points, held_out.names, -100.0, 100.0)
    looks = {}
    if evaluated.quality is not None:
        known = ~evaluated.quality.mass.isnan()
        names = [name for name, has in zip(held_out.names, known.tolist(), strict=True) if has]
        if names:
            looks = {m: _mean(getattr(evaluated.quality, m)[known], names, 0.0, 1.0) for m in LOOK_MEASURES}
    return PoolResult(int(evaluated.right.sum()), tuple(by_class.tolist()), difference, looks, seconds)


def _mean(values: Tensor, names: Sequence[str], lowest: float, highest: float) -> Estimated:
    """The mean over pictures with its interval, by drawing the pictures again."""
    numbers = values.double().numpy().astype(numpy.float64)
    low, high = resampled_interval(numbers, names, lowest=lowest, highest=highest)
    return Estimated(float(numbers.mean()), low, high)
