"""`regard scenes`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(scenes)


def scenes(
    folder: Path = typer.Argument(..., help="The folder to write."),
    train: int = typer.Option(18000, min=0, help="Scenes in the split train; each has up to seven questions."),
    val: int = typer.Option(300, min=0, help="Scenes in the split val, to choose settings on."),
    test: int = typer.Option(500, min=0, help="Scenes in the split test, to report on."),
    pairs: int = typer.Option(
        300, min=0, help="Scenes in the split pairs: pairs of colour and shape that train lacks."
    ),
    seed: int = typer.Option(0, help="Of the random numbers; the same seed gives the same bytes."),
    size: int = typer.Option(80, min=32, help="Side of a picture in pixels."),
    workers: int = typer.Option(2, min=1, help="Processes; any number writes the same bytes."),
) -> None:
    """Write the embedded benchmark in the format of VQA-v2: pictures, questions, answers, regions.

    Pictures of simple objects and seven families of questions, generated from a seed: the same seed gives the same
    bytes on every machine. The split `pairs` shows pairs of colour and shape that `train` never does.

        regard scenes out/scenes
        regard scenes out/small --train 500 --val 100 --test 100 --pairs 0
    """
    from regard._problem import Problem
    from regard.scenes import Scenes, write_scenes

    counts = {"train": train, "val": val, "test": test, "pairs": pairs}
    for split, count in counts.items():
        if count:
            benchmark = Scenes(split, count, seed, size)  # type: ignore[arg-type]
            try:
                write_scenes(benchmark, folder, workers=workers)
            except OSError as error:
                raise Problem(f"cannot write {folder}: {error.strerror}. Choose another folder.") from error
            typer.echo(f"{split}: {count} scenes, {len(benchmark.questions)} questions")
    typer.echo(f"Written to {folder}")
