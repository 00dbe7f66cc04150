"""`regard thesis`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import Derived, applied, derived
from regard.cli._shares import SharesShown
from regard.thesis.printed import EXPERIMENTS, FigureExperiment, TableExperiment, experiment
from regard.training._settings import Running
from regard.vqa.settings import TRAIN_PRESETS, TrainSettings
from regard.vqa.splits import SPLIT_NAMES


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(thesis)


@derived(
    changes=Derived(
        TrainSettings,
        "The runs",
        presets={name: make() for name, make in TRAIN_PRESETS.items()},
        inner={"model": "The models"},
        without=frozenset({"attention", "basis", "padding", "em_iterations", "price", "seed", "patience"}),
    ),
    running=Derived(
        Running, "How they run", only=frozenset({"device", "precision", "log_every", "checkpoint_every", "resume"})
    ),
)
def thesis(
    changes: dict[str, Any],
    running: dict[str, Any],
    name: str | None = typer.Argument(
        None,
        help="A table or a figure, such as table-6.2. (default: list them)",
        autocompletion=among(one.name for one in EXPERIMENTS),
    ),
    data: Path | None = typer.Argument(None, help="A folder in the form of VQA-v2, or a file with a column split."),
    pictures: Path | None = typer.Option(None, help="The folder of the pictures. (default: beside the questions)"),
    features: Path | None = typer.Option(
        None, help="The folder written by regard features. (default: out/DATA-features)", show_default=False
    ),
    out: Path | None = typer.Option(
        None,
        help="The folder of all results; tables and figures share their runs. Rerun to resume. (default: "
        "out/DATA-thesis)",
        show_default=False,
    ),
    preset: str = typer.Option(
        "thesis",
        help="Defaults of the settings below: thesis (Table 6.1), full, small or relations (for a CPU).",
        autocompletion=among(TRAIN_PRESETS),
    ),
    test: str | None = typer.Option(
        None,
        help="The split to judge on. (default: test, or val if test has no answers)",
        autocompletion=among(SPLIT_NAMES),
    ),
    seeds: int = typer.Option(1, min=1, help="Trainings per row of a table; the thesis has one."),
    question: str | None = typer.Option(None, help="The id of the question to draw in a figure. (default: by a rule)"),
    workers: int = typer.Option(2, min=1, help="Trainings at the same time, one core each."),
) -> None:
    """Run an experiment of the thesis by the name of its table or figure: Tables 6.1 to 6.4, Figures 6.4 to 6.11.

    Trains the models that it needs, and prints our figures beside those of the thesis, with what is not comparable; a
    table is written as Markdown and JSON, a figure as PNG. Attention, basis, padding and EM's steps are those of the
    table; all others are the preset's. VQA-v2's test splits have no answers: it is judged on val, and the answers to
    them are written for the evaluation server if their features are stored. Without a name all are listed.

        regard thesis
        regard thesis table-6.2 vqa/
        regard thesis figure-6.4 out/scenes --preset small
    """
    from regard._problem import Problem

    if name is None:
        typer.echo(_listed())
        return
    chosen = experiment(name)
    from regard.thesis.figures import make_figure
    from regard.thesis.setup import ThesisSetup
    from regard.thesis.tables import make_table, settings_table
    from regard.vqa.settings import preset_training

    settings = applied(preset_training(preset), changes)
    if not chosen.models:  # Table 6.1, for which nothing is trained
        typer.echo(settings_table(settings, features).markdown())
        return
    if data is None:
        raise Problem(f"{name} needs questions: say which. Example: regard thesis {name} out/scenes --preset small")
    if question is not None and not isinstance(chosen, FigureExperiment):
        raise Problem(f"--question is for a figure, and {name} is a table. Leave it out.")
    setup = ThesisSetup(
        out or default_folder(data, "thesis"),
        data,
        features or default_folder(data, "features"),
        settings,
        test,
        seeds,
        workers,
        applied(Running(progress=False), running),
        pictures,
        SharesShown(),
    )
    if isinstance(chosen, TableExperiment):
        typer.echo(make_table(chosen, setup).markdown())
        typer.echo(f"\nTable and numbers: {setup.folder.text(name)}, {setup.folder.numbers(name)}")
    elif isinstance(chosen, FigureExperiment):
        for figure in make_figure(chosen, setup, question):
            typer.echo(str(figure))


def _listed() -> str:
    """The experiments, what each shows, and what is trained for it."""
    lines = ["A table or a figure of the thesis, what it shows, and how many models are trained for it:", ""]
    for one in EXPERIMENTS:
        lines.append(f"{one.name:<12} {one.shows}; trains {len(one.models) or 'nothing'}")
    return "\n".join(
        [
            *lines,
            "",
            "They share their runs: with one --out each model is trained once. All but table-6.1 need questions with",
            "answers, and the features of their pictures: regard thesis table-6.2 DATA --features FOLDER. A model",
            "takes minutes on a core with --preset small and a few thousand scenes; with the thesis' own settings and",
            "VQA-v2 it takes days on a CPU: docs/thesis.md has what was measured.",
        ]
    )
