"""`regard finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import Derived, applied, derived, only_first_speaks
from regard.swav._finetune_settings import FINETUNE_PRESETS, FinetuneSettings
from regard.training._settings import Running


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(finetune)


@derived(
    changes=Derived(FinetuneSettings, "The run", presets={name: make() for name, make in FINETUNE_PRESETS.items()}),
    running=Derived(Running, "How it runs"),
)
def finetune(
    changes: dict[str, Any],
    running: dict[str, Any],
    backbone: str = typer.Argument(
        ..., help="The folder of a pretraining run or of a backbone, or the name of a backbone."
    ),
    pictures: Path | None = typer.Argument(
        None,
        help="Labelled pictures: a folder for each class, or folders train and val with these; tars or their URL. "
        "(default: scikit-learn's digits, not mirrored)",
        show_default=False,
        path_type=str,
    ),
    test: Path | None = typer.Option(
        None,
        help="Labelled pictures to test on. (default: those in val, else a part of PICTURES, drawn and stored)",
        path_type=str,
    ),
    out: Path | None = typer.Option(
        None,
        help="The folder of the run; rerun to resume. (default: out/PICTURES-finetuned, out/digits-finetuned)",
        show_default=False,
    ),
    preset: str = typer.Option(
        "whole",
        help="Defaults of the settings below: whole (the network on all labels), 10-percent or 1-percent of them, "
        "or linear (a linear layer on the frozen backbone).",
        autocompletion=among(FINETUNE_PRESETS),
    ),
) -> None:
    """Fine-tune a backbone with a linear layer on labelled pictures, and test it on held-out ones.

    SGD with one learning rate for the backbone and one for the linear layer, random crops and mirroring, as published
    for SwAV. The folder of the run gets `backbone/`, `split.json` (pictures that were learned from),
    `evaluation.json`, `log.csv` and checkpoints. Rerun to resume.

        regard finetune out/photos labelled/                     # the whole network, all labels
        regard finetune out/photos labelled/ --preset 10-percent --out out/ten
        regard finetune out/photos labelled/ --preset linear --out out/linear
    """
    from regard.swav import digits, finetune_preset
    from regard.swav import finetune as run

    only_first_speaks()
    out = out or default_folder(pictures or Path("digits"), "finetuned")
    data: Any = pictures
    held_out: Any = test
    if pictures is None:
        data, known = digits()
        held_out = known if test is None else test
        changes.setdefault("flip", 0.0)
        typer.echo(f"scikit-learn's digits: {len(data)} pictures to learn from, {len(known)} to test on.")
    settings = finetune_preset(preset, **changes)
    result = run(backbone, data, out=out, test=held_out, settings=settings, running=applied(Running(), running))
    if not result.first:
        return
    if result.fitted.resumed:
        typer.echo(f"Resumed from step {result.fitted.resumed}.")
    if result.task.notes.broken:
        typer.echo(f"{len(result.task.notes.broken)} broken files skipped; all are in {result.folder.broken}")
    typer.echo(result.table())
    typer.echo(f"Backbone: {result.folder.backbone}")
