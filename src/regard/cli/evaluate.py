"""`regard evaluate`: what it does depends on what the folder holds."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(evaluate)


def evaluate(
    model: Path = typer.Argument(..., help="The folder of a run, or of a backbone."),
    data: Path = typer.Argument(None, help="Labelled data. Without it: what the model's kind has built in."),
    test: Path = typer.Option(None, help="Data to test on; else a part of the data is kept for it."),
    out: Path = typer.Option(None, help="Also write the numbers here, as JSON."),
) -> None:
    """Evaluate a model on labelled data that it has not seen.

    A backbone: nearest neighbours and a linear probe, with the untrained one and raw pixels beside it, and intervals. A
    model that answers: the official accuracy, attention quality, and other attentions.

        regard evaluate out/photos labelled/
        regard evaluate out/vqa out/scenes --out accuracy.json
    """
    from regard._problem import Problem
    from regard.training import read_config

    config = read_config(model)
    kind = config.get("regard", config).get("kind") or ("backbone" if "model_type" in config else None)
    if kind not in EVALUATIONS:
        raise Problem(f"{model} holds a model of kind {kind!r}. It must be one of {', '.join(sorted(EVALUATIONS))}.")
    EVALUATIONS[kind](model, data, test, out)


def _of_pictures(model: Path, data: Path | None, test: Path | None, out: Path | None) -> None:
    """k-NN and linear probe."""
    from regard._files import replacing
    from regard.backbones import load_backbone
    from regard.pictures import Pictures, open_pictures
    from regard.swav import digits, evaluate_backbone

    learn: Pictures
    check: Pictures | None
    if data is None:
        learn, check = digits()
        typer.echo("No data given: scikit-learn's digits.")
    else:
        learn, check = open_pictures(data), None if test is None else open_pictures(test)
    evaluation = evaluate_backbone(load_backbone(model), learn, check)
    typer.echo(evaluation.table())
    if out is not None:
        with replacing(out) as beside:
            beside.write_text(json.dumps(evaluation.as_dict(), indent=2) + "\n")
        typer.echo(f"Numbers: {out}")


def _of_questions(model: Path, data: Path | None, test: Path | None, out: Path | None) -> None:
    """Accuracy and attention quality, with the attention it was trained with and with others."""
    from regard._problem import Problem
    from regard.vqa.evaluate_run import evaluate_run

    questions = test or data
    if questions is None:
        raise Problem("this model answers questions: say which. Example: regard evaluate out/vqa out/scenes")
    typer.echo(evaluate_run(model, questions, out=out))
    if out is not None:
        typer.echo(f"Numbers and answers: {out}")


# By the "kind" in a folder's config.json.
EVALUATIONS = {"backbone": _of_pictures, "swav": _of_pictures, "vqa": _of_questions}
