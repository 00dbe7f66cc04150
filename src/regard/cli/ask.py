"""`regard ask`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from regard.cli._complete import among
from regard.cli._device import device_option
from regard.vqa.kinds import NAMES, WRITTEN

if TYPE_CHECKING:
    from regard.vqa.kinds import Kind
    from regard.vqa.predict import Prediction


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ask)


def ask(
    checkpoint: Path = typer.Argument(..., help="The folder of a run of regard train, or of an exported model."),
    picture: Path | None = typer.Argument(None, help="A picture file; not with --table."),
    question: str | None = typer.Argument(None, help="A question about the picture; not with --table."),
    attention: list[str] = typer.Option(
        [],
        help=f"The output attention; repeat for several side by side: {WRITTEN}. (default: the one of the training)",
        autocompletion=among(NAMES),
    ),
    drawing: Path | None = typer.Option(
        None,
        "--picture",
        help="Draw the attention over the picture into this file: .png, .jpg, .webp, .pdf or .svg. (default: none)",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print everything as JSON: scores, weights, density; a line per attention."
    ),
    table: Path | None = typer.Option(
        None, help="Answer every row of a CSV or JSONL with pictures and questions instead. (default: none)"
    ),
    pictures: Path | None = typer.Option(
        None, help="The folder of the pictures of --table. (default: that of the table)"
    ),
    out: Path | None = typer.Option(None, help="The file for the answers to --table, in its format."),
    device: str = device_option(),
) -> None:
    """Ask a trained model about a picture: the answer, and where it looked; or answer a whole table.

    `--attention` replaces the attention of the training by another; all have the same parameters. `--picture` draws
    it in colour over the picture. Scores lie between 0 and 1, and do not sum to one. The answers to a table are its
    rows with further columns: answer, score, unknown_words, problem.

        regard ask out/mine cat.jpg "What colour is the cat?"
        regard ask out/mine cat.jpg "What colour is the cat?" --picture answer.png --attention discrete-softmax
        regard ask out/mine --table new.csv --pictures photos/ --out answers.csv
    """
    from regard._problem import Problem
    from regard.vqa.kinds import parse

    if table is not None:
        if picture is not None or question is not None or drawing is not None or as_json:
            raise Problem("--table has its own questions. Leave out the picture, the question, --picture and --json.")
    elif out is not None or pictures is not None:
        raise Problem("--out and --pictures are for a table of questions. Name it: --table new.csv")
    elif picture is None or question is None:
        raise Problem('name a picture and a question (regard ask RUN cat.jpg "What is it?"), or a --table of them.')
    try:
        kinds = list(dict.fromkeys(map(parse, attention)))
        if table is not None:
            _ask_table(checkpoint, table, out, pictures, kinds, device)
        elif picture is not None and question is not None:
            _ask_one(checkpoint, picture, question, kinds, drawing, as_json, device)
    except Problem:
        raise
    except ValueError as error:  # an attention that does not exist, or that does not fit the model
        raise Problem(str(error)) from error


def _ask_one(
    checkpoint: Path,
    picture: Path,
    question: str,
    kinds: list[Kind],
    drawing: Path | None,
    as_json: bool,
    device: str,
) -> None:
    """Ask one question with each attention, print the answers, and draw them."""
    from regard._problem import Problem
    from regard.pictures import read
    from regard.training._device import choose_device
    from regard.vqa.kinds import parse
    from regard.vqa.predict import Predictor

    if drawing is not None:
        from regard.report import check_drawing

        check_drawing(drawing)  # before the model is loaded
        if drawing.exists() and picture.exists() and drawing.samefile(picture):
            raise Problem(f"{drawing} is the picture itself. Draw into another file: --picture answer.png")
    predictor = Predictor.load(checkpoint).to(choose_device(device, needs_float64=True))
    pixels = read(picture)
    predictions = [predictor.ask(pixels, question, kind) for kind in kinds or [parse(predictor.attention)]]
    unknown = predictor.words.unknown(question)
    if as_json:
        for prediction in predictions:
            typer.echo(json.dumps(prediction.to_json()))
    else:
        typer.echo("\n\n".join(map(_in_words, predictions)))
        if unknown:
            typer.echo(f"words that the model does not know: {', '.join(unknown)}")
    if drawing is not None:
        from regard.report import Entry, write_drawing

        written = write_drawing(drawing, Entry(pixels, question, predictions, name=picture.name, unknown=unknown))
        typer.echo(f"Drawn: {written}", err=as_json)


def _ask_table(
    checkpoint: Path, table: Path, out: Path | None, pictures: Path | None, kinds: list[Kind], device: str
) -> None:
    """Answer every row of a table."""
    from regard._problem import Problem
    from regard.training._device import choose_device
    from regard.training._progress import counted
    from regard.vqa.answer_table import answer_table, check_tables
    from regard.vqa.predict import Predictor

    if out is None:
        raise Problem(f"--table needs a file for the answers: --out answers{table.suffix}")
    if len(kinds) > 1:
        raise Problem("--table takes one --attention. Run it once for each.")
    check_tables(table, out)  # before the model is loaded
    predictor = Predictor.load(checkpoint).to(choose_device(device, needs_float64=True))
    kind = kinds[0] if kinds else None
    written = answer_table(predictor, table, out, pictures=pictures, attention=kind, progress=counted("question"))
    typer.echo(str(written))


def _in_words(prediction: Prediction) -> str:
    """The answer, the scores, and where the attention looks most."""
    from regard.vqa.looks import looks_in_words

    scores = "  ".join(f"{answer} {score:.2f}" for answer, score in prediction.top)
    looks = looks_in_words(prediction.weights, prediction.density)
    return f"{prediction.answer}\n{scores}\n{prediction.attention}: {looks}"
