"""`regard export`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Write a trained model or a part of it for use elsewhere.")
    group.command("backbone")(backbone)
    group.command("model")(model)
    group.callback()(lambda: None)
    app.add_typer(group, name="export")


def backbone(
    run: Path = typer.Argument(..., help="The folder of a run, finished or not."),
    out: Path = typer.Option(Path("out/backbone"), help="The folder to write."),
    license: str | None = typer.Option(None, help="For the card, as the Hugging Face Hub writes it: apache-2.0, mit."),
) -> None:
    """Write the backbone of a run as safetensors, config.json and a card; transformers' own load with `AutoModel` too.

    The run may be finished or not: the newest checkpoint is taken. The folder is one that the Hugging Face Hub takes.

        regard export backbone out/photos --out my-backbone
    """
    from regard.backbones import fingerprint, load_backbone
    from regard.swav import load_pretraining
    from regard.training import latest

    made = load_pretraining(run).backbone if latest(run) is not None else load_backbone(run)
    folder = made.save_pretrained(out, card=made.card(out.resolve().name, license=license))
    typer.echo(f"{folder}: {made.dim} features, fingerprint {fingerprint(made)}")


def model(
    run: Path = typer.Argument(..., help="The folder of a run of regard train."),
    out: Path = typer.Option(Path("out/model"), help="The folder to write."),
    results: Path | None = typer.Option(
        None, help="What regard evaluate --out has written; unless given, evaluation/ in the run's folder."
    ),
    license: str | None = typer.Option(None, help="For the card, as the Hugging Face Hub writes it: apache-2.0, mit."),
) -> None:
    """Write a model that answers, with its words, answers and backbone, as the Hugging Face Hub takes it.

    The folder has model.safetensors, config.json, vocabulary.json, the backbone and a card, README.md. The card says
    how accurate the model is and where it looked, if it was evaluated: `regard evaluate out/vqa out/scenes --out
    out/vqa/evaluation`. `regard ask` and `regard evaluate` take the folder as they take a run, and Python does by
    `Predictor.from_pretrained`; `hf upload me/my-model my-model` brings it to the Hub.

        regard export model out/vqa --out my-model --license apache-2.0
    """
    from regard.vqa.predict import Predictor
    from regard.vqa.results import Results

    predictor = Predictor.load(run)
    if results is not None:
        predictor.results = Results.read(results)
    folder = predictor.save_pretrained(out, card=predictor.card(out.resolve().name, license=license))
    known = "evaluated on " + ", ".join(predictor.results.splits) if predictor.results else "not evaluated"
    typer.echo(f"{folder}: {predictor.attention}, {len(predictor.answers)} answers, {known}")
