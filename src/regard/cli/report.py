"""`regard report`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    run: Path = typer.Argument(..., help="The folder of a run of regard train."),
    out: Path | None = typer.Option(None, help="The HTML file to write. (default: report.html in the run's folder)"),
    questions: int = typer.Option(24, min=0, help="Questions to show at most, in turn about each picture."),
    attention: list[str] = typer.Option(
        [],
        help="An output attention to show; repeat for several side by side. regard ask --help lists them. "
        "(default: the one of the training)",
    ),
) -> None:
    """Write the report of a run: how well it answers, and questions with their answers and where it looked.

    One HTML file that loads nothing: it can be sent by mail, printed and read on a phone. The accuracy comes from the
    run's summary or from its evaluation, the examples from the held-out pictures that a run carries.

        regard report out/mine
        regard report out/mine --out report.html --attention discrete-softmax --attention continuous-softmax
    """
    from regard._problem import Problem
    from regard.report import write_run_report
    from regard.training._progress import counted

    try:
        written = write_run_report(run, out, questions=questions, attentions=attention, progress=counted("question"))
    except Problem:
        raise
    except ValueError as error:  # an attention that does not exist
        raise Problem(str(error)) from error
    typer.echo(str(written))
