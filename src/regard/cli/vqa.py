"""`regard vqa`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from regard.backbones._known import BACKBONE_NAMES
from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import Derived, applied, derived, only_first_speaks
from regard.training._settings import Running
from regard.vqa.settings import TRAIN_PRESETS, TrainSettings


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(vqa)


@derived(
    changes=Derived(
        TrainSettings,
        "The training",
        presets={name: make() for name, make in TRAIN_PRESETS.items()},
        inner={"model": "The model"},
    ),
    running=Derived(Running, "How it runs"),
)
def vqa(
    changes: dict[str, Any],
    running: dict[str, Any],
    pictures: Path = typer.Argument(..., help="The folder of the pictures."),
    table: Path = typer.Argument(
        ..., help="The questions: a CSV or JSONL with picture, question and answer; optionally split."
    ),
    out: Path | None = typer.Option(None, help="The folder of the run; rerun to resume. (default: out/TABLE)"),
    backbone: str | None = typer.Option(
        None,
        help="What makes the features: a name, a run of regard pretrain or a model of Hugging Face. (default: the best "
        "pretrained one on this machine)",
        autocompletion=among(BACKBONE_NAMES),
    ),
    size: int | None = typer.Option(
        None, min=8, help="Side that pictures are resized to, in pixels. (default: the backbone's)"
    ),
    preset: str = typer.Option(
        "small",
        help="Defaults of the settings below: small or relations (for a CPU), full or thesis (Table 6.1, for a GPU).",
        autocompletion=among(TRAIN_PRESETS),
    ),
    val: float = typer.Option(0.1, min=0, max=1, help="Share of the pictures for validation, without a column split."),
    test: float = typer.Option(0.2, min=0, max=1, help="Share of the pictures for the test, without a column split."),
) -> None:
    """From your pictures and a table of questions to a model that answers, with its accuracy on new pictures.

    Reads and checks the table, holds pictures out for validation and test, takes a pretrained backbone if there is one
    on this machine, says how long it will take, stores features, trains, evaluates beside "question alone" and "most
    frequent answer", and writes a report. Rerun to resume; every step is also a command of its own: split, features,
    train, evaluate, report.

        regard vqa photos/ questions.csv
        regard vqa photos/ questions.csv --attention continuous-softmax --out out/mine
    """
    only_first_speaks()
    from regard.answering import answer_questions
    from regard.vqa.settings import preset_training

    folder = out or default_folder(table)
    result = answer_questions(
        pictures,
        table,
        folder,
        applied(preset_training(preset), changes),
        backbone=backbone,
        size=size,
        val=val,
        test=test,
        running=applied(Running(), running),
        say=typer.echo,
    )
    typer.echo("")
    typer.echo(result.summary.sentence)
    typer.echo(f"{result.seconds:.0f} s. What it looked at, and where it is right and wrong: open {result.report.path}")
    typer.echo(f'Ask it:     regard ask {folder} PICTURE "QUESTION"')
    typer.echo(f"On a page:  regard explore {folder}")
