"""Training: the thesis' schedule, or a short one for small models; resumes bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from regard import _check
from regard._files import replacing
from regard._problem import Problem
from regard.backbones import Backbone, load_backbone, save_backbone
from regard.training import Fitted, Muon, Task, cosine, fit, latest, muon_groups
from regard.vqa.description import FeatureDescription
from regard.vqa.evaluate import Evaluation, evaluate_model
from regard.vqa.examples import Examples, Grouped
from regard.vqa.features import FeatureStore
from regard.vqa.grids import grids
from regard.vqa.mcan import MCAN, ModelSettings, relations, small
from regard.vqa.pixels import PixelStore
from regard.vqa.records import Answers, Records
from regard.vqa.store import KIND, write_training, write_vocabulary
from regard.vqa.words import Words, read_glove


@dataclass(frozen=True)
class TrainSettings:
    """How to train; the defaults are those of the thesis (Table 6.1)."""

    model: ModelSettings = field(default_factory=ModelSettings)
    epochs: int = 13
    batch: int = 64
    lr: float = 1e-4
    optimizer: Literal["adam", "muon"] = "adam"
    schedule: Literal["thesis", "cosine"] = "thesis"
    above: int = 8  # an answer is known if it was given more often than this
    seed: int = 0
    accumulate: int = 1
    clip: float | None = None
    patience: int | None = None  # epochs without a better validation accuracy before it stops
    glove: str | None = None
    grouped: bool = False  # all questions about a picture at once; a batch still holds about `batch` questions

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("epochs", "batch", "accumulate"):
            _check.count(name, getattr(self, name))
        _check.number("lr", self.lr, above=0)
        _check.choice("optimizer", self.optimizer, ("adam", "muon"))
        _check.choice("schedule", self.schedule, ("thesis", "cosine"))

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


def small_training(**changes: Any) -> TrainSettings:
    """The settings for scenes: the small model, four epochs, one cosine.

    >>> small_training(epochs=3).model.width
    64
    """
    model = changes.pop("model", None) or small()
    short: dict[str, Any] = {"model": model, "epochs": 4, "batch": 64, "lr": 2e-3, "schedule": "cosine", "clip": 64.0}
    return TrainSettings(**(short | {"optimizer": "muon", "grouped": True} | changes))


def preset_training(preset: str, **model: Any) -> TrainSettings:
    """The settings of a preset, "thesis" (Table 6.1), "small" or "relations", with changes to its model.

    >>> preset_training("relations", attention="mixture-2").epochs
    2
    """
    if preset == "thesis":
        return TrainSettings(model=ModelSettings(**model))
    if preset == "small":
        return small_training(model=small(**model))
    if preset == "relations":
        return small_training(model=relations(**model), epochs=2)
    raise Problem(f"there is no preset {preset!r}. Choose thesis, small or relations.")


def settings_of(config: dict[str, Any]) -> TrainSettings:
    """The settings that a run was trained with, from its config.json."""
    return TrainSettings(model=ModelSettings(**config["model"]), **config["training"])


def thesis_schedule(per_epoch: int) -> Callable[[int], float]:
    """The factor of the learning rate: 1/4, 1/2, 3/4, 1 over the first epochs, a fifth from epoch 10, again from 12.

    Epochs are counted from one, as in Table 6.1.

    >>> factor = thesis_schedule(per_epoch=1)
    >>> [round(factor(step), 3) for step in range(13)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2, 0.04, 0.04]
    """

    def factor(step: int) -> float:
        epoch = step // per_epoch + 1
        return min(epoch / 4, 1.0) * math.prod(0.2 for decay in (10, 12) if epoch >= decay)

    return factor


class Answering(Task):
    """A model that answers, as a task for `regard.training.fit`."""

    def __init__(
        self, model: MCAN, settings: TrainSettings, config: dict[str, Any], backbone: Backbone | None = None
    ) -> None:
        """`config` says what belongs to the model, for the checkpoint; a `backbone` is trained with it, on pictures."""
        super().__init__()
        self.model, self.settings, self.config, self.backbone = model, settings, config, backbone

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """Binary cross-entropy summed over answers and examples; the log has it for one example."""
        features = batch["features"]
        if self.backbone is not None:  # pictures, of which it makes features
            features = grids(self.backbone, self.backbone.prepare(features))
        scores, _ = self.model(features, batch["words"], batch.get("rows"))
        loss = self.model.loss(scores, batch["targets"])
        # Gradients are averaged over processes: their mean is to be the sum over all examples.
        whole = loss * (dist.get_world_size() if dist.is_initialized() else 1)

        def right() -> dict[str, float]:
            return {"right": float(batch["targets"].gather(1, scores.argmax(-1, keepdim=True)).mean())}

        return whole, {"each": float(loss.detach()) / len(scores), "right": right}

    def optimizer(self) -> torch.optim.Optimizer:
        """Adam as MCAN's, or Muon with the same Adam for what is no matrix and for the last layer."""
        if self.settings.optimizer == "muon":
            return Muon(muon_groups(self, apart=["model.head"]), lr=self.settings.lr, betas=(0.9, 0.98), eps=1e-9)
        return torch.optim.Adam(self.parameters(), lr=self.settings.lr, betas=(0.9, 0.98), eps=1e-9)


@dataclass(frozen=True)
class Trained:
    """A finished run: where it is, how it went, and its accuracy on the validation records, if there are any."""

    out: Path
    fitted: Fitted
    evaluation: Evaluation | None
    stopped_early: bool
    skipped: str


def train(
    out: Path | str,
    records: Records,
    store: FeatureStore | PixelStore,
    settings: TrainSettings,
    *,
    validation: Records | None = None,
    progress: bool = True,
    **running: Any,
) -> Trained:
    """Train a model on records and stored features, into the folder `out`; go on where an earlier call was stopped.

    A `PixelStore` in place of features trains its backbone too, end to end; without validation: evaluate it after.
    `running` goes to `regard.training.fit`: devices, precision, log, workers, checkpoint_every. With
    `settings.patience` the accuracy on the `validation` records is taken after every epoch.
    """
    out = Path(out)
    network = store.network if isinstance(store, PixelStore) else None
    if network is not None and validation is not None:
        raise Problem("validation needs stored features. Train end to end without, and evaluate the run afterwards.")
    records = records.keep_answered()
    if not len(records):
        raise Problem(f"{records.name} has no answers. Train on a split that has annotations.")
    if validation is not None:
        validation = validation.keep_answered()
        if not len(validation):
            raise Problem(f"{validation.name} has no answers. Validate on a split that has annotations.")
    words = Words.of(record.question for record in records.records)
    answers = Answers.of(records.records, settings.above)
    if not len(answers):
        raise Problem(f"no answer of {records.name} was given more than {settings.above} times. Lower it: --above")
    examples = Examples(records, store, words, answers, settings.model.tokens)
    torch.manual_seed(settings.seed)
    model = MCAN(
        settings.model,
        vocabulary=len(words),
        answers=len(answers),
        cells=store.shape[:2],
        features=store.shape[2],
    )
    model.standardise(store.sample(256))
    if settings.glove:
        vectors, _ = read_glove(settings.glove, words, settings.model.words)
        with torch.no_grad():
            model.embedding.weight.copy_(torch.where(vectors.any(1, keepdim=True), vectors, model.embedding.weight))
    config = {
        "kind": KIND,
        "model": settings.model.to_json(),
        "cells": list(store.shape[:2]),
        "features": store.shape[2],
        "words": words.fingerprint,
        "answers": answers.fingerprint,
        "backbone": store.description.to_json() | {"end_to_end": network is not None},
        "training": {k: v for k, v in settings.to_json().items() if k != "model"},
    }
    write_vocabulary(out, words, answers)
    write_training(out, records)
    for name, said in (("config", config), ("features", {"folder": str(store.folder.resolve())})):
        with replacing(out / f"{name}.json") as beside:
            beside.write_text(json.dumps(said, indent=1))
    if isinstance(store, FeatureStore):
        _keep_backbone(out, store)
    task = Answering(model, settings, config, network)
    samples = Grouped(examples) if settings.grouped else examples
    batch = max(1, round(settings.batch * len(samples) / len(examples)))
    per_epoch = max(1, len(samples) // min(batch * settings.accumulate, len(samples)))
    steps = settings.epochs * per_epoch
    (out / "steps").write_text(f"{steps}\n")  # for who looks on
    schedule = thesis_schedule(per_epoch) if settings.schedule == "thesis" else cosine(steps, min(100, steps // 10))
    options: dict[str, Any] = {
        "batch_size": batch,
        "accumulate": settings.accumulate,
        "clip": settings.clip,
        "seed": settings.seed,
        "schedule": schedule,
        "out": out,
        "progress": progress,
        "checkpoint_every": max(1, min(per_epoch, 500)),
    }
    held = _Held(out, settings.patience)
    known = None
    if validation is not None:
        known = Examples(validation, store, words, answers, settings.model.tokens)
    if settings.patience is None or known is None:
        fitted = fit(task, samples, steps=steps, **(options | running))
    else:
        for epoch in range(1, settings.epochs + 1):
            fitted = fit(task, samples, steps=epoch * per_epoch, **(options | running))
            held.add(epoch, evaluate_model(task.model, known, answers).accuracy.overall)
            if held.enough:
                break
    if network is not None:
        save_backbone(network, out / "backbone")
    evaluation = evaluate_model(task.model, known, answers) if known else None
    return Trained(out, fitted, evaluation, held.enough, _skipped(examples, known))


class _Held:
    """Validation accuracies of the epochs so far, kept on disk so that a resumed run stops where it would have."""

    def __init__(self, out: Path, patience: int | None) -> None:
        self.path, self.patience = out / "validation.json", patience
        self.scores: dict[int, float] = {}
        if patience is not None and latest(out) is not None and self.path.is_file():
            self.scores = {int(epoch): score for epoch, score in json.loads(self.path.read_text()).items()}

    def add(self, epoch: int, score: float) -> None:
        self.scores[epoch] = score
        with replacing(self.path) as beside:
            beside.write_text(json.dumps(self.scores))

    @property
    def enough(self) -> bool:
        if self.patience is None or not self.scores:
            return False
        best = max(self.scores, key=lambda epoch: self.scores[epoch])
        return max(self.scores) - best >= self.patience


def _keep_backbone(out: Path, store: FeatureStore) -> None:
    """Copy the backbone into the run, so that pictures can be asked about later; without it only features can."""
    if (out / "backbone" / "config.json").is_file():
        return
    try:
        backbone = load_backbone(store.description.name)
    except Problem:
        return
    if FeatureDescription.of(backbone, store.description.name, store.description.stages) == store.description:
        save_backbone(backbone, out / "backbone")


def _skipped(*parts: Examples | None) -> str:
    return "\n".join(str(part.records.skipped) for part in parts if part is not None and part.records.skipped)
