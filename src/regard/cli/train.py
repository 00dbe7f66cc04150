"""`regard train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.backbones._known import BACKBONE_NAMES
from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import Derived, applied, derived, only_first_speaks
from regard.training._settings import Running
from regard.vqa.settings import TRAIN_PRESETS, TrainSettings
from regard.vqa.splits import SPLIT_NAMES

if TYPE_CHECKING:
    from regard.vqa.records import Records


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


@derived(
    changes=Derived(
        TrainSettings,
        "The run",
        presets={name: make() for name, make in TRAIN_PRESETS.items()},
        inner={"model": "The model"},
    ),
    running=Derived(Running, "How it runs"),
)
def train(
    changes: dict[str, Any],
    running: dict[str, Any],
    data: Path = typer.Argument(..., help="A folder in the form of VQA-v2, a JSONL or a CSV file."),
    pictures: Path | None = typer.Option(None, help="The folder of the pictures. (default: beside the questions)"),
    features: Path | None = typer.Option(
        None, help="The folder written by regard features. (default: out/DATA-features)", show_default=False
    ),
    end_to_end: str | None = typer.Option(
        None,
        help="A backbone to train too, on the pictures, instead of --features. (default: none)",
        autocompletion=among(BACKBONE_NAMES),
    ),
    size: int | None = typer.Option(
        None, min=8, help="Side of the pictures for --end-to-end, in pixels. (default: the backbone's)"
    ),
    out: Path | None = typer.Option(
        None, help="The folder of the run; rerun to resume. (default: out/DATA-vqa)", show_default=False
    ),
    preset: str = typer.Option(
        "small",
        help="Defaults of the settings below: small or relations (for a CPU), full or thesis (Table 6.1, for a GPU).",
        autocompletion=among(TRAIN_PRESETS),
    ),
    split: str = typer.Option("train", help="The split to train on.", autocompletion=among(SPLIT_NAMES)),
    validation: str | None = typer.Option(
        None,
        help="A split to evaluate on at the end, and for --patience. (default: none)",
        autocompletion=among(SPLIT_NAMES),
    ),
) -> None:
    """Train a model that answers questions about pictures (MCAN).

    Reads the features of `regard features`, or trains a backbone too with `--end-to-end`. Rerun to resume. With few
    data lower `--above`: rarer answers are not learned.

        regard train out/scenes --attention continuous-softmax
        regard train mine.csv --pictures photos/ --above 1 --out out/mine
        regard train vqa/ --preset thesis --validation val --attention mixture-4-sparse
    """
    only_first_speaks()
    import torch

    from regard._ranks import is_first
    from regard.backbones import make_backbone
    from regard.vqa.features import FeatureStore
    from regard.vqa.folder import AnsweringFolder
    from regard.vqa.needs import Need, check_features, check_splits, unwatched
    from regard.vqa.pixels import PixelStore
    from regard.vqa.plan import TrainingPlan
    from regard.vqa.read import check_answers, existing, read_questions, splits_in
    from regard.vqa.samples import keep_samples
    from regard.vqa.settings import preset_training
    from regard.vqa.train import train as run

    features = features or default_folder(data, "features")
    out = out or default_folder(data, "vqa")
    settings = applied(preset_training(preset), changes)
    run_options = applied(Running(), running)
    needs = [Need(split, "training", "--split")]
    if validation is not None:
        needs.append(Need(validation, "validation", "--validation"))
    elif settings.patience is not None:
        raise unwatched(splits_in(existing(data)))
    check_splits(data, needs)
    stored = None if end_to_end else FeatureStore.open(features)
    parts = [read_questions(data, need.split, pictures) for need in needs]
    for need, part in zip(needs, parts, strict=True):
        check_answers(part, data, need.use, need.option)
        if stored is not None:
            check_features(stored, part, data)
    records, held_out = parts[0], parts[1] if validation is not None else None
    store: FeatureStore | PixelStore
    if end_to_end:
        torch.manual_seed(settings.seed)  # for the weights of an untrained backbone
        store = PixelStore(records.pictures, make_backbone(end_to_end, size=size), end_to_end)
    else:
        assert stored is not None
        store = stored
    plan = TrainingPlan.of(settings, len(records), len(records.pictures) if settings.grouped else len(records))
    typer.echo(f"{len(records)} questions, {plan.epochs} epochs, {plan.steps} steps")
    if plan.warning:
        typer.echo(f"Warning: {plan.warning}", err=True)
    trained = run(out, records, store, settings, validation=held_out, running=run_options)
    if is_first() and (samples := _unseen(data, pictures, split)):
        keep_samples(AnsweringFolder(out), samples)
    typer.echo(f"{trained.fitted.steps} steps in {trained.fitted.seconds:.0f} s, run in {out}")
    if trained.stopped_early:
        typer.echo("Stopped early: the validation accuracy no longer rose.")
    if trained.evaluation is not None:
        typer.echo(str(trained.evaluation.accuracy))
    if trained.skipped:
        typer.echo(trained.skipped)


def _unseen(data: Path, pictures: Path | None, trained: str) -> Records | None:
    """The records of a split with answers that is not trained on, test or else val; None if there is none."""
    from regard.vqa.read import read_questions, splits_in

    splits = splits_in(data)
    for name in ("test", "val"):
        if name != trained and splits.get(name):
            return read_questions(data, name, pictures)
    return None
