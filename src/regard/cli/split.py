"""`regard split`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(split)


def split(
    data: Path = typer.Argument(..., help="A JSONL or a CSV file without a column split."),
    out: Path | None = typer.Option(None, help="The file to write. (default: NAME-split beside DATA)"),
    val: float = typer.Option(0.1, min=0, max=1, help="Share of the pictures in the split val, to choose settings on."),
    test: float = typer.Option(0.1, min=0, max=1, help="Share of the pictures in the split test, to report on."),
    seed: int = typer.Option(0, help="Decides, with a picture's name, on its split."),
) -> None:
    """Hold pictures out of training: copy a file of questions, with a new column `split`.

    All questions about a picture go to the same split, which depends on the picture's name and the seed alone: rows
    added later change nothing for the others. All commands read the column. Two copies of a picture under two names
    count as two pictures.

        regard split mine.jsonl
        regard split mine.csv --val 0 --test 0.2 --out mine-train-test.csv
    """
    from regard._problem import Problem
    from regard.vqa.own import hold_out

    try:
        path, pictures = hold_out(data, out, val=val, test=test, seed=seed)
    except Problem:
        raise
    except ValueError as error:
        raise Problem(str(error)) from error
    typer.echo(", ".join(f"{name}: {count} pictures" for name, count in pictures.items()))
    typer.echo(f"Written to {path}")
