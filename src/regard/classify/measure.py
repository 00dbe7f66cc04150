"""All pools that are trained in a folder, on its held-out pictures: the summary of a classifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from regard._problem import Problem
from regard.classify.evaluate import HeldOut, ObjectMasks, evaluate_head, result_of
from regard.classify.features import LabelledNames
from regard.classify.folder import ClassifierFolder
from regard.classify.pools import AVERAGE_NAME
from regard.classify.summary import LOOK_MEASURES, ClassifierSummary
from regard.classify.train import load_head
from regard.training import Fitted
from regard.vqa.blind import blind_measures
from regard.vqa.feature_store import FeatureStore
from regard.vqa.records import Skipped


@dataclass(frozen=True)
class Measured:
    """The summary of a classifier, and the names of the held-out pictures that it names wrong."""

    summary: ClassifierSummary
    mistakes: frozenset[str]


def measure_pools(
    folder: ClassifierFolder,
    store: FeatureStore,
    parts: tuple[LabelledNames, LabelledNames],
    drawn: bool,
    masks: Path | str | None,
    fitted: Mapping[str, Fitted],
    skipped: Skipped,
    device: torch.device | str = "cpu",
) -> Measured:
    """Evaluate every pool that is trained in a folder, beside average pooling and what does not look.

    `folder`: with the trained pools; the last one is the classifier's.
    `store`: the features.
    `parts`: what was learned from, and what is held out.
    `drawn`: whether the held-out pictures were drawn from those given.
    `masks`: the folder of the masks of the objects; None for none.
    `fitted`: the trainings of this call, by pool.
    `skipped`: notes on what was left out; gets those on masks.
    `device`: where they are computed; default "cpu".
    """
    learn, held_out = parts
    source = folder.read_source()
    if source is None:
        raise Problem(f"{folder.path} has no classifier. Train one: regard classify PICTURES --out {folder.path}")
    count, average = len(source.classes), AVERAGE_NAME
    found = None if masks is None else ObjectMasks(Path(masks), held_out.names, skipped)
    names = [*dict.fromkeys([source.pool, *(n for n in folder.trained() if n != average), average])]
    evaluated: dict[str, HeldOut] = {
        name: evaluate_head(load_head(folder.head(name)).head.to(device), store, held_out, found) for name in names
    }
    results = {}
    for name, one in evaluated.items():
        seconds = folder.head(name).read_done()
        if name in fitted and fitted[name].resumed and fitted[name].steps:
            seconds = None
        compared = None if name == average else evaluated[average]
        results[name] = result_of(one, compared, held_out, count, seconds)
    counts = Counter(learn.labels)
    most = min(counts, key=lambda label: (-counts[label], label))
    tested = torch.tensor(held_out.labels).bincount(minlength=count).tolist()
    blind: dict[str, dict[str, float]] = {}
    area, known = None, 0
    if found is not None:
        measured = blind_measures(found.batches(), store.shape[:2])
        means = {name: quality.mean() for name, quality in measured.items()}
        blind = {name: {m: mean[m] for m in LOOK_MEASURES} for name, mean in means.items()}
        areas = next(iter(measured.values())).area
        area, known = float(areas.nanmean()), int((~areas.isnan()).sum())
    summary = ClassifierSummary(
        Path(source.pictures).name,
        source.classes,
        len(learn),
        tuple(tested),
        drawn,
        tested[most],
        source.pool,
        results,
        blind,
        area,
        known,
        source.about,
        source.untrained,
        tuple(sentence for _, sentence in skipped.notes[:20]),
    )
    right = evaluated[source.pool].right.tolist()
    return Measured(
        summary, frozenset(name for name, is_right in zip(held_out.names, right, strict=True) if not is_right)
    )
