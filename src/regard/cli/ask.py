"""`regard ask`."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from regard.cli._complete import among
from regard.vqa.kinds import NAMES, WRITTEN


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ask)


def ask(
    checkpoint: Path = typer.Argument(..., help="The folder of a run of regard train, or of an exported model."),
    picture: Path = typer.Argument(..., help="A picture file."),
    question: str = typer.Argument(..., help="A question about the picture."),
    attention: str | None = typer.Option(
        None,
        help=f"The output attention: {WRITTEN}. (default: the one of the training)",
        autocompletion=among(NAMES),
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON: scores, weights, density."),
) -> None:
    """Ask a trained model about a picture: the answer, and where it looked.

    `--attention` replaces the attention of the training by another; all have the same parameters. `--json` prints
    everything: scores, weights, effective weights, density.

        regard ask out/vqa cat.jpg "What colour is the cat?"
        regard ask out/vqa cat.jpg "What colour is the cat?" --attention continuous-sparsemax --json
    """
    from regard._problem import Problem
    from regard.pictures import read
    from regard.vqa.predict import Predictor

    predictor = Predictor.load(checkpoint)
    try:
        prediction = predictor.ask(read(picture), question, attention)
    except Problem:
        raise
    except ValueError as error:
        raise Problem(str(error)) from error
    if as_json:
        typer.echo(json.dumps(prediction.to_json()))
        return
    typer.echo(prediction.answer)
    typer.echo("  ".join(f"{answer} {score:.2f}" for answer, score in prediction.top))
    row, column = divmod(int(prediction.weights.argmax()), prediction.weights.shape[1])
    height, width = prediction.weights.shape
    typer.echo(
        f"{prediction.attention}: looks most at {(column + 0.5) / width:.2f} across, {(row + 0.5) / height:.2f} down; "
        f"entropy {prediction.entropy:.2f} bits, support {prediction.support_area:.0%} of the picture"
    )
