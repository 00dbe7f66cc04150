"""Training of models that answer, with validation and early stopping; a killed run resumes bit for bit."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard._ranks import is_first
from regard.backbones import Backbone, load_backbone, save_backbone
from regard.training import FitSettings, Fitted, Muon, Running, Task, cosine, fit, muon_groups
from regard.training._data import DataDescription
from regard.training._device import choose_device, computing_on
from regard.training._together import current
from regard.vqa.description import UNNAMED, FeatureDescription
from regard.vqa.evaluate import Evaluation, evaluate_model
from regard.vqa.examples import Examples, Grouped
from regard.vqa.features import FeatureStore
from regard.vqa.folder import AnsweringFolder
from regard.vqa.grids import grids
from regard.vqa.kinds import Discrete, Kind, parse
from regard.vqa.mcan import MCAN
from regard.vqa.needs import unwatched
from regard.vqa.pixels import PixelStore
from regard.vqa.plan import TrainingPlan
from regard.vqa.provenance import training_data
from regard.vqa.records import Answers, Records
from regard.vqa.samples import keep_samples
from regard.vqa.settings import TrainSettings, thesis_schedule
from regard.vqa.store import KIND, load_run
from regard.vqa.words import Words, read_glove


class Answering(Task):
    """A model that answers, as a task for `regard.training.fit`."""

    needs_float64 = True

    def __init__(
        self,
        model: MCAN,
        settings: TrainSettings,
        config: dict[str, Any],
        backbone: Backbone | None = None,
        steps: int | None = None,
    ) -> None:
        """Put the parts together.

        `model`: the network.
        `settings`: of the optimiser.
        `config`: written to config.json.
        `backbone`: trained with the model, on pictures; default None, the model is trained on features.
        `steps`: of the whole training, which `settings.anneal` is a share of; default None, without annealing.
        """
        super().__init__()
        self.model, self.settings, self.config, self.backbone = model, settings, config, backbone
        kind = parse(model.attention)
        share = settings.anneal if isinstance(kind, Discrete) else None
        self.annealed_steps = 0 if share is None or steps is None else round(share * steps)
        self.kind, self.steps_done = kind, 0

    @property
    def attention(self) -> Kind:
        """The kind of output attention of the next step."""
        if isinstance(self.kind, Discrete) and self.steps_done < self.annealed_steps:
            return self.kind.annealed(self.steps_done / self.annealed_steps)
        return self.kind

    def after_update(self, step: int) -> None:
        """Count the steps."""
        self.steps_done = step + 1

    def extra_state(self) -> dict[str, Any]:
        """How far annealing is, if there is any."""
        return {"steps_done": self.steps_done} if self.annealed_steps else {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.steps_done = int(state.get("steps_done", self.annealed_steps))

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """Cross-entropy summed over examples; in the log, per example ("each")."""
        features = batch["features"]
        if self.backbone is not None:  # pictures, of which it makes features
            features = grids(self.backbone, self.backbone.prepare(features))
        scores, _ = self.model(features, batch["words"], batch.get("rows"), attention=self.attention)
        loss = self.model.loss(scores, batch["targets"])
        # Gradients are averaged over processes, and here their mean must be the sum over all examples.
        scaled = loss * (dist.get_world_size() if dist.is_initialized() else 1)

        def right() -> dict[str, float]:
            return {"right": float(batch["targets"].gather(1, scores.argmax(-1, keepdim=True)).mean())}

        return scaled, {"each": loss.detach() / len(scores), "right": right}

    def optimizer(self) -> torch.optim.Optimizer:
        """Adam with MCAN's parameters; or Muon, with that Adam for vectors, embeddings and the last layer."""
        if self.settings.optimizer == "muon":
            return Muon(muon_groups(self, apart=["model.head"]), lr=self.settings.lr, betas=(0.9, 0.98), eps=1e-9)
        return torch.optim.Adam(self.parameters(), lr=self.settings.lr, betas=(0.9, 0.98), eps=1e-9)


@dataclass(frozen=True)
class Trained:
    """A finished run: folder, steps and speed, evaluation on validation records (or None), notes on skipped records."""

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
    running: Running | None = None,
    start: Path | str | None = None,
) -> Trained:
    """Train a model on records and stored features; rerun to resume. A folder with a run on other data is a Problem.

    `out`: the folder of the run.
    `records`: questions with answers.
    `store`: the features of their pictures; with a `PixelStore` its backbone is trained too, end to end.
    `settings`: the model and how it is trained.
    `validation`: records to measure the accuracy on, at the end, and with `settings.patience` after every epoch;
        some of them are kept in the run (`regard.vqa.samples`); default None. Not with a `PixelStore`: evaluate its
        run afterwards.
    `running`: devices, precision, log, progress; default `regard.training.Running()`.
    `start`: the folder of a run of the same sizes, words and answers, whose weights are the first; default None, drawn
        at random.
    """
    running = running or Running()
    folder = AnsweringFolder(Path(out))
    backbone = store.network if isinstance(store, PixelStore) else None
    if backbone is not None and validation is not None:
        raise Problem("validation needs stored features. Train end to end without, and evaluate the run afterwards.")
    records = records.keep_answered()
    if not len(records):
        raise Problem(f"{records.name} has no answers. Train on a split that has annotations.")
    if settings.patience is not None and validation is None:
        raise unwatched()
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
    if settings.model.standardise:
        model.standardise(store.sample(256))
    if settings.glove:
        vectors, _ = read_glove(settings.glove, words, settings.model.words)
        with torch.no_grad():
            model.embedding.weight.copy_(torch.where(vectors.any(1, keepdim=True), vectors, model.embedding.weight))
    if start is not None:
        _begin_with(model, Path(start), words, answers)
    config: dict[str, Any] = {
        "kind": KIND,
        "model": settings.model.to_json(),
        "cells": list(store.shape[:2]),
        "features": store.shape[2],
        "words": words.fingerprint,
        "answers": answers.fingerprint,
        "backbone": store.description.to_json() | {"end_to_end": backbone is not None},
        "training": {k: v for k, v in settings.to_json().items() if k != "model"},
    }
    if start is not None:
        config["start"] = Path(start).name
    validated = None
    if validation is not None:
        validated = Examples(validation, store, words, answers, settings.model.tokens)
    data = training_data(records, store, validation if settings.patience is not None else None)
    samples = Grouped(examples) if settings.grouped else examples
    plan = TrainingPlan.of(settings, len(examples), len(samples))
    per_epoch, steps = plan.per_epoch, plan.steps
    task = Answering(model, settings, config, backbone, steps)
    schedule = thesis_schedule(per_epoch) if settings.schedule == "thesis" else cosine(steps, min(100, steps // 10))
    fit_settings = FitSettings(
        steps=steps,
        batch_size=plan.batch,
        seed=settings.seed,
        schedule=schedule,
        accumulate=settings.accumulate,
        clip=settings.clip,
    )
    device = choose_device(running.device, needs_float64=True)

    def evaluated(part: Examples) -> Evaluation:
        with computing_on(task.model, device):
            return evaluate_model(task.model, part, answers, group=current())

    if running.checkpoint_every is None:
        running = replace(running, checkpoint_every=min(per_epoch, 500))
    with writing_to(folder.path), disk_in_words(folder.path, folder.kept):
        fresh = _begin(folder, data, resume=running.resumes)
        if is_first():
            folder.write_data(data)
            _write_beginning(folder, task, store, (words, answers), records, fresh=fresh)
            folder.write_steps(steps)
        stopping = _EarlyStopping(folder, settings.patience, per_epoch)
        if settings.patience is None or validated is None:
            fitted = fit(task, samples, fit_settings, out=folder.path, running=running)
        else:
            fitted = Fitted(0, stopping.steps, 0.0, 0.0)
            # From the epoch of the checkpoint on; if it is the last of that, `fit` only loads it.
            for epoch in range(stopping.epoch, plan.epochs + 1):
                until = replace(fit_settings, steps=epoch * per_epoch)
                fitted = _together(fitted, fit(task, samples, until, out=folder.path, running=running))
                running = replace(running, resume=True)  # only the first of these calls may begin afresh
                if epoch not in stopping.scores:
                    stopping.add(epoch, evaluated(validated).accuracy.overall)
                if stopping.due:
                    break
        if backbone is not None and is_first():
            save_backbone(backbone, folder.backbone)
        if is_first() and validation is not None and (fresh or not folder.samples.is_dir()):
            keep_samples(folder, validation)
    evaluation = evaluated(validated) if validated else None
    return Trained(folder.path, fitted, evaluation, stopping.due, _skipped(examples, validated))


def _begin_with(model: MCAN, start: Path, words: Words, answers: Answers) -> None:
    """Give a model the weights of a run; a Problem if that answers other questions, or is of another size."""
    run = load_run(start)
    same = run.words.fingerprint == words.fingerprint and run.answers.fingerprint == answers.fingerprint
    weights = run.model.state_dict()
    sizes = {name: x.shape for name, x in weights.items()} == {name: x.shape for name, x in model.state_dict().items()}
    if not (same and sizes):
        what = "sizes" if same else "words or answers"
        raise Problem(f"{start} is a run with other {what}. Start from one that was trained on the same questions.")
    model.load_state_dict(weights)


def _begin(folder: AnsweringFolder, data: DataDescription, *, resume: bool) -> bool:
    """Whether the run begins afresh; a Problem if the folder has one that is trained on other data."""
    fresh = not (resume and folder.is_begun)
    if fresh and is_first():
        folder.begin_afresh()
    elif not fresh:
        folder.check_data(data)
    return fresh


def _write_beginning(
    folder: AnsweringFolder,
    task: Answering,
    store: FeatureStore | PixelStore,
    vocabularies: tuple[Words, Answers],
    records: Records,
    *,
    fresh: bool,
) -> None:
    """Write what is known before the first step."""
    if fresh:
        folder.put_vocabulary(*vocabularies)
    folder.write_vocabulary(*vocabularies)
    folder.write_pictures(record.picture for record in records.records)
    folder.write_config(task.config)
    folder.write_features(store.folder)
    if isinstance(store, FeatureStore):
        _keep_backbone(folder, store, fresh=fresh)


def _together(first: Fitted, then: Fitted) -> Fitted:
    """Two calls of `fit`, one after the other, as one."""
    return Fitted(first.steps + then.steps, first.resumed, first.seconds + then.seconds, then.samples_per_second)


class _EarlyStopping:
    """Validation accuracies of the epochs so far, on disk, so that a resumed run stops at the same epoch.

    steps: those of the checkpoint to resume from.
    epoch: the one that it lies in, or is the end of; counted from one.
    """

    def __init__(self, folder: AnsweringFolder, patience: int | None, per_epoch: int) -> None:
        self.folder, self.patience = folder, patience
        checkpoint = folder.latest() if patience is not None else None
        self.steps = 0 if checkpoint is None else checkpoint.step
        self.epoch = max(1, -(-self.steps // per_epoch))
        written = folder.read_validation() if self.steps else {}
        self.scores = {epoch: score for epoch, score in written.items() if epoch * per_epoch <= self.steps}

    def add(self, epoch: int, score: float) -> None:
        self.scores[epoch] = score
        if is_first():
            self.folder.write_validation(self.scores)

    @property
    def due(self) -> bool:
        """Whether the best epoch lies `patience` epochs back."""
        if self.patience is None or not self.scores:
            return False
        best = max(self.scores, key=lambda epoch: self.scores[epoch])
        return max(self.scores) - best >= self.patience


def _keep_backbone(folder: AnsweringFolder, store: FeatureStore, *, fresh: bool) -> None:
    """Copy the backbone into the run, for questions about new pictures, if it is still the same."""
    if folder.has_backbone and not fresh:
        return
    name, backbone = store.description.name, None
    if name != UNNAMED:  # the Hub is not asked for that
        with contextlib.suppress(Problem):
            backbone = load_backbone(name)
    if backbone is None:
        if fresh:  # that of an earlier run
            shutil.rmtree(folder.backbone, ignore_errors=True)
        return
    if FeatureDescription.of(backbone, name, store.description.stages) == store.description:
        save_backbone(backbone, folder.backbone)


def _skipped(*parts: Examples | None) -> str:
    return "\n".join(str(part.records.skipped) for part in parts if part is not None and part.records.skipped)
