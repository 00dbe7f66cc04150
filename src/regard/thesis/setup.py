"""What the experiments of the thesis are run on, checked before they begin; and their trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from regard import _plain
from regard._problem import Problem
from regard.thesis.folder import ThesisFolder
from regard.thesis.printed import TrainedModel
from regard.training import Running
from regard.vqa.feature_store import FeatureStore
from regard.vqa.jobs import Job, run_jobs
from regard.vqa.needs import Need, check_features, check_splits
from regard.vqa.own import TRAIN
from regard.vqa.read import check_answers, existing, read_questions, splits_in
from regard.vqa.records import Records
from regard.vqa.settings import TrainSettings

R = TypeVar("R")

GRID = (14, 14, 2048)
"""The features of the thesis: height, width, channels, of a ResNet on pictures of 448 x 448."""

ANSWERED = ("test", "val")  # splits to judge on, the first that has answers
SERVED = ("test-dev", "test")  # splits of VQA-v2 that an evaluation server judges
# What a table itself sets, or that changes no figure.
_OF_THE_TABLE = {"model", "seed", "attention", "basis", "padding", "em_iterations", "price"}


@dataclass(frozen=True)
class ThesisSetup:
    """Data, features and settings of the experiments.

    `out`: the folder of all results; finished runs in it are reused.
    `data`: questions, as `read_questions` takes them.
    `features`: the folder of the features of all pictures.
    `settings`: of every run; a table replaces seed, attention, basis, padding and EM's steps by its own. Default the
        thesis'.
    `test`: the split to judge on; default None, test, or val if test has no answers.
    `seeds`: trainings per model; default 1, as in the thesis.
    `workers`: trainings at a time, each on one core; default 2.
    `running`: of every run; default `Running(progress=False)`.
    `pictures`: the folder of the pictures; default None, beside the questions.
    `progress`: called with the share that is trained; default None.
    """

    out: Path
    data: Path
    features: Path
    settings: TrainSettings = field(default_factory=TrainSettings)
    test: str | None = None
    seeds: int = 1
    workers: int = 2
    running: Running = field(default_factory=lambda: Running(progress=False))
    pictures: Path | None = None
    progress: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        """Check everything that the trainings need."""
        _plain.count("seeds", self.seeds)
        if self.settings.patience is not None:
            raise Problem("the thesis trains without validation. Leave patience out, and set the number of epochs.")
        needs = [Need(TRAIN, "training"), Need(self.judged, "a table of the thesis", "--test")]
        check_splits(self.data, needs)
        for need in needs:
            records = read_questions(self.data, need.split, self.pictures)
            check_answers(records, self.data, need.use, need.option)
            check_features(self.store, records, self.data)

    @cached_property
    def judged(self) -> str:
        """The split to judge on."""
        known = splits_in(existing(self.data))
        return self.test or next((name for name in ANSWERED if known.get(name)), ANSWERED[0])

    @cached_property
    def store(self) -> FeatureStore:
        """The features."""
        return FeatureStore.open(self.features)

    @property
    def cells(self) -> int:
        """How many cells the features have."""
        return self.store.shape[0] * self.store.shape[1]

    @property
    def folder(self) -> ThesisFolder:
        """The folder of the results."""
        return ThesisFolder(self.out)

    def records(self) -> Records:
        """The questions that are judged."""
        return read_questions(self.data, self.judged, self.pictures)

    def served(self) -> list[str]:
        """Splits without answers whose features are stored, for the evaluation server."""
        known = splits_in(self.data)
        names = [name for name in SERVED if name in known and not known[name]]
        return [
            name for name in names if any(map(self.store.has, read_questions(self.data, name, self.pictures).pictures))
        ]

    def settings_for(self, model: TrainedModel, seed: int) -> TrainSettings:
        """The settings of a run."""
        changes: dict[str, Any] = {"attention": model.attention, "padding": True, "em_iterations": "thesis"}
        if model.basis is not None:
            changes["basis"] = model.basis
        return replace(self.settings, seed=seed, model=replace(self.settings.model, **changes))

    def job(self, model: TrainedModel, seed: int) -> Job:
        """The training of a model with a seed."""
        settings, run = self.settings_for(model, seed), self.folder.run(model, seed)
        return Job(run, self.data, self.features, settings, self.running, self.pictures)

    def trained(self, models: Sequence[TrainedModel], then: Callable[[Job], R]) -> dict[TrainedModel, list[R]]:
        """Train what is not yet, and return the results of `then`, one per seed."""
        wanted = [(model, seed) for seed in range(self.seeds) for model in models]
        results = run_jobs([self.job(*one) for one in wanted], then, self.workers, self.progress)
        found: dict[TrainedModel, list[R]] = {model: [] for model in models}
        for (model, _), result in zip(wanted, results, strict=True):
            found[model].append(result)
        return found

    def differences(self) -> list[str]:
        """In sentences, in what these experiments differ from those of the thesis."""
        return list(self._differences())

    def _differences(self) -> Iterator[str]:
        count = len(self.records())
        yield (
            f"{self.seeds} training{'s' if self.seeds > 1 else ''} per row, judged on {count} questions of the split "
            f"{self.judged} of {self.data.name}; the thesis has one per row, judged on VQA-v2's test-dev and "
            "test-standard"
        )
        if self.store.shape != GRID:
            ours, theirs = (" x ".join(map(str, shape)) for shape in (self.store.shape, GRID))
            yield f"features of {ours}; in the thesis {theirs}, of a ResNet on pictures of 448 x 448"
        printed, settings = TrainSettings(), self.settings
        pairs = ((settings, printed), (settings.model, printed.model))
        changed = [
            f"{f.name} {getattr(ours, f.name)} ({getattr(theirs, f.name)})"
            for ours, theirs in pairs
            for f in fields(theirs)
            if f.name not in _OF_THE_TABLE and getattr(ours, f.name) != getattr(theirs, f.name)
        ]
        if changed:
            yield f"settings, with the thesis' in brackets: {', '.join(changed)}"
        if settings.glove is None:
            yield "word vectors that start at random; the thesis' start as GloVe's (--glove)"
        yield "integrals of continuous sparsemax are exact here; the thesis sums over 100 angles"
