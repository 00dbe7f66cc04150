"""The whole way from pictures and a table of questions to a model that answers, its evaluation and its report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from regard._problem import Problem
from regard.answering.choice import BackboneChoice, choose_backbone
from regard.answering.estimate import estimate
from regard.backbones import Backbone, load_backbone, make_backbone, save_backbone
from regard.pictures import read, squeezed
from regard.report import RunReport, write_run_report
from regard.training import Fitted, Running
from regard.training._device import choose_device
from regard.training._progress import counted
from regard.vqa.evaluate import evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.features import FeatureStore, kept_backbone, make_features
from regard.vqa.folder import AnsweringFolder, DataSource
from regard.vqa.plan import TrainingPlan
from regard.vqa.records import Answers
from regard.vqa.samples import keep_samples
from regard.vqa.settings import TrainSettings
from regard.vqa.store import load_run
from regard.vqa.summary import RunSummary, keep_summary, summarise
from regard.vqa.survey import Survey, look_at
from regard.vqa.train import train
from regard.vqa.words import Words

ALL = "all"  # the name of the features of all pictures, whatever their split
_TIMED = 4  # pictures that the backbone is timed on


@dataclass(frozen=True)
class AnsweringOutcome:
    """The result: the folder of the run, its summary on held-out pictures, the report, and the seconds it took."""

    folder: AnsweringFolder
    summary: RunSummary
    report: RunReport
    seconds: float


def answer_questions(
    pictures: Path | str,
    table: Path | str,
    out: Path | str,
    settings: TrainSettings,
    *,
    backbone: str | None = None,
    size: int | None = None,
    val: float = 0.1,
    test: float = 0.2,
    running: Running | None = None,
    say: Callable[[str], None] = print,
) -> AnsweringOutcome:
    """Train a model on a table of questions about pictures, evaluate it on pictures held out, and write a report.

    The table is checked and its pictures split before anything is written; the same splits are used when it is run
    again. Every step resumes: rerun after a stop. A folder made from another table is refused.

    `pictures`: the folder of the pictures.
    `table`: questions with answers, a CSV or JSONL file.
    `out`: the folder of the run.
    `settings`: of the model and its training; its seed also decides on the splits.
    `backbone`: what makes the features, as `make_backbone` takes it; default the best one on this machine.
    `size`: the side that pictures are resized to, in pixels; default that of the backbone.
    `val`: the share of pictures for validation, if the table has no column `split`; default 0.1.
    `test`: the share of pictures for the test, if the table has no column `split`; default 0.2.
    `running`: devices, precision, whether to resume; default `Running()`.
    `say`: called with each sentence about what was found and what is done; default print.
    """
    start, folder, running = time.monotonic(), AnsweringFolder(Path(out)), running or Running()
    survey = look_at(table, pictures, val=val, test=test, seed=settings.seed)
    if settings.patience is not None and not len(survey.split("val")):
        raise Problem(
            f"{table} has no rows of the split val, and --patience watches the accuracy on them. Name some val in the "
            "column split, or leave --patience out."
        )
    for sentence in survey.sentences():
        say(sentence)
    if warning := squeezed(survey.records.pictures.values()):
        say(f"warning: {warning}")
    earlier = folder.read_source() if running.resume else None
    if running.resume:
        _check_source(folder, earlier, survey)
    choice = _choice(folder, earlier, backbone)
    for sentence in choice.sentences:
        say(sentence)
    device = choose_device(running.device, needs_float64=True)
    network = _network(folder, running.resume, choice, backbone, size, settings.seed).to(device)
    _say_estimate(folder, survey, choice, network, settings, say)
    if not running.resume:
        folder.remove_features()
    survey.write(folder.questions)
    folder.write_source(_source(survey, Path(pictures), choice))
    store = _features(folder, survey, choice, network, running.progress, say)
    training, held_out = survey.split("train"), survey.split("test")
    validation = survey.split("val")
    if not len(held_out):  # a table whose own column has no test
        held_out = validation
    watched = validation if len(validation) else None
    trained = train(folder.path, training, store, settings, validation=watched, running=running)
    keep_samples(folder, held_out)
    seconds = _training_seconds(folder, trained.fitted)
    run = load_run(folder.path)
    run.model.to(device)
    examples = Examples(held_out, store, run.words, run.answers, run.model.settings.tokens)
    evaluation = evaluate_model(run.model, examples, run.answers)
    summary = summarise(
        run,
        training,
        held_out,
        evaluation,
        data=Path(table).name,
        untrained=choice.untrained,
        left_out=[f"{kind}: {sentence}" for kind, sentence in survey.records.skipped.notes[:20]],
        seconds=seconds,
    )
    keep_summary(folder, summary, evaluation)
    report = write_run_report(folder.path, folder.report)
    return AnsweringOutcome(folder, summary, report, time.monotonic() - start)


def _source(survey: Survey, pictures: Path, choice: BackboneChoice) -> DataSource:
    return DataSource(
        str(survey.table.resolve()),
        str(pictures.resolve()),
        len(survey.records),
        survey.digest,
        choice.name,
        choice.about,
        choice.untrained,
        choice.stages,
    )


def _check_source(folder: AnsweringFolder, earlier: DataSource | None, survey: Survey) -> None:
    """Raise a Problem if the folder is of another run, or of other questions."""
    if earlier is None:
        if folder.config.is_file() and folder.latest() is not None:
            raise Problem(
                f"{folder.path} has a run of another command. Name another folder with --out, or start over in it: "
                "--fresh"
            )
        return
    if earlier.digest != survey.digest:
        raise Problem(
            f"{folder.path} was made from {earlier.questions} questions of {earlier.table}, and {survey.table} has "
            f"{len(survey.records)} others (or other splits). Name another folder with --out, or start over: --fresh"
        )


def _choice(folder: AnsweringFolder, earlier: DataSource | None, backbone: str | None) -> BackboneChoice:
    """The backbone asked for, else the one of an earlier start, else the best on this machine."""
    if backbone is None and earlier is not None:
        return BackboneChoice(earlier.backbone, earlier.about, earlier.untrained, earlier.stages)
    return choose_backbone(backbone, folder.path.parent)


def _network(
    folder: AnsweringFolder, resume: bool, choice: BackboneChoice, backbone: str | None, size: int | None, seed: int
) -> Backbone:
    """The backbone of an earlier start, which must be the one asked for now, if any is; else a new one.

    Nothing is written.
    """
    if resume and folder.has_backbone:
        if backbone is None and size is None:
            return load_backbone(folder.backbone)
        return kept_backbone(folder.backbone, choice.name, size, seed)[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_backbone(choice.name, size=size)


def _say_estimate(
    folder: AnsweringFolder,
    survey: Survey,
    choice: BackboneChoice,
    network: Backbone,
    settings: TrainSettings,
    say: Callable[[str], None],
) -> None:
    """Say how long it will take and how much disk it needs; a Problem if there is too little."""
    training = survey.split("train")
    samples = len(training.pictures) if settings.grouped else len(training)
    plan = TrainingPlan.of(settings, len(training), samples)
    if plan.warning:
        say(f"warning: {plan.warning}")
    timed = []
    for path in survey.records.pictures.values():
        try:
            timed.append(network.prepare(read(path)[None]))
        except Problem:
            continue
        if len(timed) == _TIMED:
            break
    if not timed:
        raise Problem(f"none of the {len(survey.records.pictures)} pictures can be read. Check the files.")
    expected = estimate(
        network,
        choice.stages,
        torch.cat(timed),
        settings,
        plan,
        pictures=len(survey.records.pictures),
        stored=_stored(folder),
        present=folder.network_bytes(),
        words=len(Words.of(record.question for record in training.records)),
        answers=max(1, len(Answers.of(training.records, settings.above))),
    )
    say(f"{plan.epochs} epochs, {plan.steps} steps: {expected}")
    expected.check_space(folder.path)


def _stored(folder: AnsweringFolder) -> int:
    """How many pictures have features already."""
    try:
        store = FeatureStore.open(folder.own_features(ALL))
    except Problem:
        return 0
    return sum(map(store.has, store.names))


def _features(
    folder: AnsweringFolder,
    survey: Survey,
    choice: BackboneChoice,
    network: Backbone,
    shown: bool,
    say: Callable[[str], None],
) -> FeatureStore:
    """The features of all pictures, whatever their split."""
    if not folder.has_backbone:
        save_backbone(network, folder.backbone)
    store, skipped = make_features(
        folder.own_features(ALL),
        survey.records.pictures,
        network,
        name=str(folder.backbone.resolve()),
        stages=choice.stages,
        progress=counted("picture", shown),
        untrained=choice.untrained,
    )
    if skipped:
        say(str(skipped))
    return store


def _training_seconds(folder: AnsweringFolder, fitted: Fitted) -> float | None:
    """Of the whole training; None if a part of it was run before, in a process that was stopped."""
    earlier = folder.read_summary()
    if fitted.steps == 0 and earlier is not None:
        return earlier.seconds
    return None if fitted.resumed else fitted.seconds
