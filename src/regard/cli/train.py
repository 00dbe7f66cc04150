"""`regard train`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from regard.cli._devices import Devices, NumNodes, Precision, Strategy, chosen, only_first_speaks


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    data: Path = typer.Argument(..., help="A folder in the form of VQA-v2, a JSONL or a CSV file."),
    features: Path = typer.Option(Path("out/features"), help="What regard features has stored."),
    end_to_end: str | None = typer.Option(None, help="A backbone to train along, in place of --features."),
    size: int | None = typer.Option(None, min=8, help="Side of the pictures for --end-to-end."),
    out: Path = typer.Option(Path("out/vqa"), help="Where the run goes; the same again goes on."),
    preset: str = typer.Option("thesis", help="thesis (Table 6.1), small or relations."),
    attention: str = typer.Option("discrete-softmax", help="Output attention; see regard ask --help."),
    basis: str = typer.Option("gaussian", help="gaussian, fourier, thesis-49 or thesis-100."),
    coordinates: bool = typer.Option(True, help="Cells know where they are."),
    split: str = typer.Option("train", help="What to train on."),
    validation: str | None = typer.Option(None, help="A split to measure on at the end, and for --patience."),
    epochs: int | None = typer.Option(None, min=1, help="Passes over the data; unless given, the preset's."),
    batch: int | None = typer.Option(None, min=1, help="Questions in a step; unless given, the preset's."),
    lr: float | None = typer.Option(None, help="The learning rate; unless given, the preset's."),
    grouped: bool | None = typer.Option(
        None, "--grouped/--single", help="All questions about a picture at once, or each by itself; or the preset's."
    ),
    accumulate: int = typer.Option(1, min=1, help="Batches for one update."),
    above: int = typer.Option(8, min=0, help="Answers given more often than this are known."),
    patience: int | None = typer.Option(None, min=1, help="Stop after so many epochs without a better validation."),
    glove: Path | None = typer.Option(None, help="Word vectors, a GloVe text file as wide as the preset's."),
    seed: int = typer.Option(0, help="Decides all that is random."),
    devices: Devices = "1",
    num_nodes: NumNodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    workers: int = typer.Option(0, min=0, help="Loader processes."),
    log: str = typer.Option("csv", help="csv, tensorboard or none."),
) -> None:
    """Train a model that answers questions about pictures (MCAN).

    Reads what `regard features` has stored, or trains a backbone along with `--end-to-end`. The same command goes on
    where it was stopped. With few data lower `--above`: answers that are given less often are not learned.

        regard train out/scenes --features out/features --preset small --attention continuous-softmax
        regard train mine.jsonl --preset small --above 1 --out out/mine
        regard train vqa/ --validation val --patience 2 --attention mixture-4-sparse
    """
    only_first_speaks()
    import torch

    from regard._problem import Problem
    from regard.backbones import make_backbone
    from regard.training import Running
    from regard.vqa.features import FeatureStore
    from regard.vqa.pixels import PixelStore
    from regard.vqa.read import check_answers, read_questions
    from regard.vqa.train import preset_training
    from regard.vqa.train import train as run

    changes: dict[str, Any] = {"attention": attention, "basis": basis, "coordinates": coordinates}
    try:
        settings = preset_training(preset, **changes)
        given = {"epochs": epochs, "batch": batch, "lr": lr, "grouped": grouped}
        settings = replace(
            settings,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
            accumulate=accumulate,
            above=above,
            patience=patience,
            glove=str(glove) if glove else None,
            seed=seed,
        )
    except (ValueError, TypeError) as error:
        raise Problem(str(error)) from error
    records = read_questions(data, split)
    check_answers(records, data, "training")
    held = read_questions(data, validation) if validation else None
    if held is not None:
        check_answers(held, data, "validation")
    store: FeatureStore | PixelStore
    if end_to_end:
        torch.manual_seed(seed)  # the weights of a backbone that has none
        store = PixelStore(records.pictures, make_backbone(end_to_end, size=size), end_to_end)
    else:
        store = FeatureStore.open(features)
    trained = run(
        out,
        records,
        store,
        settings,
        validation=held,
        running=Running(
            workers=workers,
            log=log,  # type: ignore[arg-type]
            **chosen(devices, num_nodes, strategy, precision),
        ),
    )
    typer.echo(f"{trained.fitted.steps} steps in {trained.fitted.seconds:.0f} s, run in {out}")
    if trained.stopped_early:
        typer.echo("Stopped early: the validation accuracy no longer rose.")
    if trained.evaluation is not None:
        typer.echo(str(trained.evaluation.accuracy))
    if trained.skipped:
        typer.echo(trained.skipped)
