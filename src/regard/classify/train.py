"""Training of a pool and a linear layer on stored features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard._problem import Problem
from regard.classify.features import FeatureBatches, LabelledNames, averages_of
from regard.classify.head import ClassifierHead
from regard.classify.pools import Average, parse_pool
from regard.classify.settings import ClassifierSettings
from regard.training import FitSettings, Fitted, Order, RunFolder, Running, Task, cosine, fit, groups
from regard.training._fit import restore
from regard.vqa.feature_store import FeatureStore

_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 1000, 15, 200  # of a training whose length is not given


class Classify(Task):
    """A head as a task for `fit`: the cross entropy of the classes."""

    needs_float64 = True

    def __init__(self, head: ClassifierHead, settings: ClassifierSettings, config: dict[str, Any]) -> None:
        """Put the parts together; `config` is written to config.json."""
        super().__init__()
        self.head, self.settings, self.config = head, settings, config

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The cross entropy of a batch of `FeatureBatches`, and the share that is right."""
        scores = self.head(batch["features"]).scores
        right = (scores.detach().argmax(-1) == batch["labels"]).float().mean()
        return cross_entropy(scores, batch["labels"]), {"accuracy": right}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(groups(self, self.settings.weight_decay), lr=self.settings.lr)


def make_task(shape: tuple[int, int, int], classes: int, settings: ClassifierSettings, origin: str) -> Classify:
    """A new head, from the seed of the settings.

    `shape`: (h, w, D) of the features.
    `classes`: how many.
    `settings`: of the training.
    `origin`: the fingerprint of what makes the features.
    """
    height, width, dim = shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = ClassifierHead(
            dim,
            classes,
            (height, width),
            settings.pool,
            hidden=settings.hidden,
            largest=settings.largest,
            dropout=settings.dropout,
        )
    config = {"kind": "classifier-head", "shape": list(shape), "classes": classes, "features": origin}
    return Classify(head, settings, {**config, "settings": settings.as_dict()})


def length_of(settings: ClassifierSettings, pictures: int) -> tuple[int, int]:
    """Epochs and steps of a training on so many pictures.

    >>> [length_of(ClassifierSettings(), pictures) for pictures in (3200, 64, 10**6)]
    [(20, 1000), (200, 200), (15, 234375)]
    """
    per_epoch = Order(pictures, settings.batch_size, settings.seed).per_epoch
    epochs = settings.epochs or min(_MOST_EPOCHS, max(_LEAST_EPOCHS, -(-_STEPS // per_epoch)))
    return epochs, epochs * per_epoch


def train_head(
    folder: RunFolder,
    store: FeatureStore,
    learn: LabelledNames,
    classes: int,
    settings: ClassifierSettings,
    running: Running,
) -> tuple[Classify, Fitted]:
    """Train a pool in a folder of its own; rerun to resume. Returns the task, in evaluation mode."""
    task = make_task(store.shape, classes, settings, store.description.fingerprint)
    batches = FeatureBatches(store, learn, averaged=isinstance(parse_pool(settings.pool), Average))
    averages = batches.averages
    task.head.standardise(averages_of(store, learn.names) if averages is None else averages[:, 0, 0])
    _, steps = length_of(settings, len(learn))
    if not running.resume:
        folder.begin_afresh()
    schedule = cosine(steps, min(20, steps // 10))
    fit_settings = FitSettings(steps, settings.batch_size, settings.seed, schedule)
    fitted = fit(task, batches, fit_settings, out=folder.path, running=replace(running, workers=0))
    folder.write_config(task.config)
    if not folder.is_done:
        folder.write_done(fitted.seconds)
    return task.eval(), fitted


def load_head(folder: RunFolder) -> Classify:
    """The trained head of a pool's folder; a Problem if it has none."""
    checkpoint = folder.latest()
    if checkpoint is None:
        raise Problem(f"{folder.path} has no trained head. Train it: regard classify PICTURES --pool NAME")
    config = checkpoint.config
    try:
        settings = ClassifierSettings(**config["settings"])
        height, width, dim = (int(n) for n in config["shape"])
        task = make_task((height, width, dim), int(config["classes"]), settings, str(config["features"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Problem(f"{checkpoint.folder} is not a head of a classifier ({error}). Name another folder.") from error
    restore(task, checkpoint)
    return task.eval()
