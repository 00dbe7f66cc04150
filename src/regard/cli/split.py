"""`regard split`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(split)


def split(
    data: Path = typer.Argument(..., help="A JSONL or a CSV file without a column split."),
    out: Path | None = typer.Option(None, help="The file to write; unless given, NAME-split beside it."),
    val: float = typer.Option(0.1, min=0, max=1, help="Share of the pictures to choose settings on."),
    test: float = typer.Option(0.1, min=0, max=1, help="Share of the pictures to report on."),
    seed: int = typer.Option(0, help="Another seed, other pictures."),
) -> None:
    """Hold pictures out of training: write a file of questions again with a column `split`.

    A picture goes with all its questions, so that none is in two splits; its name and the seed decide, so that rows
    added later change nothing for the others. All commands read the column. Two copies of a picture under two names are
    two pictures to it.

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
