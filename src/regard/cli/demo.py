"""`regard demo`."""

from __future__ import annotations

from pathlib import Path

import typer

from regard.cli._device import device_option
from regard.vqa.kinds import DEMO


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    out: Path = typer.Option(Path("out/demo"), help="The folder for all results; rerun to resume."),
    workers: int = typer.Option(2, min=1, help="Trainings at the same time, one core each."),
    device: str = device_option(),
) -> None:
    """From nothing to answers: draw scenes, pretrain a backbone without labels, train two models, show what they see.

    About seven minutes on two idle cores. Everything is written to one folder; rerun to resume. At the end: a table of
    accuracies with that of the question alone, and `report.html`.

        regard demo
        regard demo --out /tmp/demo --workers 4
    """
    from regard.demo import DemoFolder
    from regard.demo import demo as run

    typer.echo("Scenes, SwAV, features, two models, a report: about seven minutes on two idle cores.", err=True)
    result = run(out, workers=workers, device=device)
    typer.echo(result.table)
    typer.echo("")
    typer.echo(f"The question alone gives {result.question_only:.1f} %.")
    for kind, accuracy in result.accuracy.items():
        typer.echo(f"{kind} answers {accuracy:.1f} % of the questions about new scenes.")
    typer.echo(f"{result.seconds:.0f} s. What the models looked at: open {result.report}")
    model = DemoFolder(result.out).model(str(DEMO[-1]))
    typer.echo(f"Ask it yourself: regard ask {model} PICTURE QUESTION")
    typer.echo(f"Or on a page: regard explore {model}")
