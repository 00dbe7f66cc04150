"""The demonstration: scenes, a backbone pretrained without labels, two models, a report."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import disk_in_words, replacing
from regard._lock import writing_to
from regard.scenes import SPLITS, Scenes, write_scenes
from regard.training._device import choose_device
from regard.vqa.kinds import DEMO, MixtureOf

TRAINED_KINDS = tuple(map(str, DEMO))
COUNTS = {"train": 10_000, "val": 200, "test": 400, "pairs": 200}


@dataclass(frozen=True)
class DemoSettings:
    """The size of the demonstration."""

    scenes: dict[str, int]
    pretraining_steps: int
    epochs: int
    entries: int = 12  # questions in the report

    @classmethod
    def usual(cls) -> DemoSettings:
        """The default settings, about seven minutes on two cores."""
        return cls(dict(COUNTS), 400, 4)


@dataclass(frozen=True)
class Demo:
    """The results of the demonstration."""

    out: Path
    table: str
    accuracy: dict[str, float]
    question_only: float
    report: Path
    seconds: float
    reused: list[str]


@dataclass(frozen=True)
class DemoFolder:
    """The folder of the demonstration.

        settings.json    the settings of all other files
        scenes/          pictures and questions
        swav/            the run that pretrains the backbone
        features/        the features of all pictures
        models/          the comparison of the models
        table.txt        its tables
        report.html      the attention of the models

    >>> DemoFolder(Path("out/demo")).model("mixture-2").as_posix()
    'out/demo/models/mixture-2-0'
    """

    path: Path

    @property
    def settings(self) -> Path:
        """The settings of all other files."""
        return self.path / "settings.json"

    @property
    def scenes(self) -> Path:
        """Pictures and questions."""
        return self.path / "scenes"

    @property
    def pretraining(self) -> Path:
        """The run that pretrains the backbone."""
        return self.path / "swav"

    @property
    def features(self) -> Path:
        """The features of all pictures."""
        return self.path / "features"

    @property
    def models(self) -> Path:
        """The comparison of the models."""
        return self.path / "models"

    def model(self, kind: str) -> Path:
        """The run with a kind of attention."""
        from regard.vqa.folder import ComparisonFolder

        return ComparisonFolder(self.models).run(kind, 0).path

    @property
    def table(self) -> Path:
        """The tables of the comparison."""
        return self.path / "table.txt"

    @property
    def report(self) -> Path:
        """The attention of the models."""
        return self.path / "report.html"

    def remove_parts(self) -> None:
        """Remove everything that depends on the settings."""
        for part in (self.scenes, self.pretraining, self.features, self.models):
            shutil.rmtree(part, ignore_errors=True)


def demo(
    out: Path, settings: DemoSettings | None = None, *, workers: int = 2, quiet: bool = False, device: str = "auto"
) -> Demo:
    """Run the demonstration; finished steps in the folder `out` are reused.

    Scenes are drawn; a small backbone is pretrained on them with SwAV, without labels; its features are stored; two
    models are trained, with discrete and with continuous output attention; they are evaluated on scenes that they have
    not seen, and a report shows their attention.

    `out`: the folder.
    `settings`: default `DemoSettings.usual()`.
    `workers`: processes; default 2.
    `quiet`: print no progress; default False.
    `device`: what to compute on, as in `regard train`; default "auto".
    """
    choose_device(device, needs_float64=True)  # before anything is made
    folder = DemoFolder(out.resolve())
    with writing_to(folder.path), disk_in_words(folder.path, lambda: "Finished parts are kept."):
        return _demonstrate(folder, settings or DemoSettings.usual(), _Progress(quiet), workers, device)


def _demonstrate(folder: DemoFolder, settings: DemoSettings, progress: _Progress, workers: int, device: str) -> Demo:
    """All parts of the demonstration, one after the other."""
    start = time.monotonic()
    reused: list[str] = []
    if _settings_changed(folder, settings):
        reused.append("nothing: other settings")
    with progress.step("drawing scenes"):
        for split in SPLITS:
            write_scenes(Scenes(split, settings.scenes[split]), folder.scenes, workers=workers)
    _features(folder, settings, progress, reused, device)
    comparison = _train(folder, settings, progress, workers, device)
    with progress.step("writing the report"):
        report = _report(folder, settings)
    accuracy = {kind: comparison.accuracy[kind]["overall"][0] for kind in TRAINED_KINDS}
    question_only = comparison.accuracy["question only"]["overall"][0]
    table = comparison.tables()
    with replacing(folder.table) as beside:
        beside.write_text(table + "\n")
    return Demo(folder.path, table, accuracy, question_only, report, time.monotonic() - start, reused)


def _features(folder: DemoFolder, settings: DemoSettings, progress: _Progress, reused: list[str], device: str) -> None:
    import torch

    from regard.backbones import load_backbone
    from regard.pictures import read
    from regard.swav import pretrain
    from regard.training import RunFolder, Running
    from regard.vqa.features import make_features
    from regard.vqa.read import read_questions

    run = RunFolder(folder.pretraining)
    if run.has_backbone:
        reused.append("backbone")
    else:
        with progress.step(f"pretraining a backbone with SwAV, {settings.pretraining_steps} steps"):
            pictures = torch.stack([read(path) for path in read_questions(folder.scenes, "train").pictures.values()])
            pretrain(
                pictures,
                preset="scenes",
                out=run.path,
                steps=settings.pretraining_steps,
                prototypes=min(60, len(pictures)),
                running=Running(progress=not progress.quiet, device=device),
            )
    with progress.step("storing features"):
        pictures_by_name: dict[str, Path] = {}
        for split in SPLITS:
            pictures_by_name |= read_questions(folder.scenes, split).pictures
        backbone = load_backbone(run.backbone).to(choose_device(device))
        make_features(folder.features, pictures_by_name, backbone, name=str(run.backbone), stages=True)


def _train(folder: DemoFolder, settings: DemoSettings, progress: _Progress, workers: int, device: str) -> Any:
    from regard.training import Running
    from regard.vqa.compare import compare_kinds
    from regard.vqa.settings import small_training

    with progress.step(f"training {' and '.join(TRAINED_KINDS)}, {settings.epochs} epochs") as bar:
        return compare_kinds(
            folder.models,
            folder.scenes,
            folder.features,
            small_training(epochs=settings.epochs),
            TRAINED_KINDS,
            seeds=1,
            workers=workers,
            prices=(0.1,),
            running=Running(progress=False, device=device),
            progress=bar,
        )


def _report(folder: DemoFolder, settings: DemoSettings) -> Path:
    """Write a report: questions of the test split with the predictions of both models."""
    from regard.pictures import read
    from regard.report import Entry, write_report
    from regard.vqa.predict import Predictor
    from regard.vqa.read import read_questions

    records = read_questions(folder.scenes, "test")
    predictors = {kind: Predictor.load(folder.model(kind)) for kind in TRAINED_KINDS}
    entries = []
    for record in records.records[:: max(1, len(records) // settings.entries)][: settings.entries]:
        picture = read(records.pictures[record.picture])
        predictions = [predictor.ask(picture, record.question) for predictor in predictors.values()]
        # The continuous model again, with another attention.
        predictions.append(predictors[TRAINED_KINDS[1]].ask(picture, record.question, MixtureOf(2)))
        entries.append(
            Entry(picture, record.question, predictions, record.answers, record.question_type, record.picture)
        )
    return write_report(folder.report, entries, "What the models looked at")


def _settings_changed(folder: DemoFolder, settings: DemoSettings) -> bool:
    """Whether the folder has results of other settings, which are then removed."""
    from regard.vqa.settings import small_training

    training = small_training(epochs=settings.epochs).to_json()
    current = json.dumps({"scenes": settings.scenes, "steps": settings.pretraining_steps, "training": training})
    changed = folder.settings.is_file() and folder.settings.read_text() != current
    if changed:
        folder.remove_parts()
    with replacing(folder.settings) as beside:
        beside.write_text(current)
    return changed


class _Progress:
    """Progress on standard error: the steps, a bar and the time left."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[float], None]]:
        start = last = time.monotonic()
        self._write(f"{name} ...\n")

        def bar(share: float) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < (0.5 if self.terminal else 15) or share < 0.02:  # too early for an estimate
                return
            last = now
            left = (now - start) * (1 - share) / share
            blocks = "#" * round(30 * share)
            self._write(f"\r  [{blocks:<30}] {share:4.0%}, about {left:.0f} s left", "" if self.terminal else "\n")

        yield bar
        self._write(f"{chr(13) if self.terminal else ''}  {name}: {time.monotonic() - start:.0f} s{' ' * 30}\n")

    def _write(self, text: str, end: str = "") -> None:
        if not self.quiet:
            sys.stderr.write(text + end)
            sys.stderr.flush()
