"""`regard export`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        no_args_is_help=True, help="Write a trained model, or its backbone, to a folder for the Hugging Face Hub."
    )
    group.command("backbone")(backbone)
    group.command("model")(model)
    group.callback()(lambda: None)
    app.add_typer(group, name="export")


def backbone(
    run: Path = typer.Argument(..., help="The folder of a run of regard pretrain, finished or not, or of a backbone."),
    out: Path = typer.Option(Path("out/backbone"), help="The folder to write."),
    license: str | None = typer.Option(
        None,
        help="License for the model card, by its identifier on the Hugging Face Hub: apache-2.0, mit. (default: none)",
    ),
) -> None:
    """Write the backbone of a run: safetensors, config.json and a model card.

    Of an unfinished run, that of the newest checkpoint. The folder can be uploaded to the Hugging Face Hub; a backbone
    from transformers can be loaded by its `AutoModel` too.

        regard export backbone out/photos --out my-backbone
    """
    from regard.backbones import fingerprint, load_backbone
    from regard.swav import load_pretraining
    from regard.training import latest

    network = load_pretraining(run).backbone if latest(run) is not None else load_backbone(run)
    folder = network.save_pretrained(out, card=network.card(out.resolve().name, license=license))
    typer.echo(f"{folder}: {network.dim} features, fingerprint {fingerprint(network)}")


def model(
    run: Path = typer.Argument(..., help="The folder of a run of regard train."),
    out: Path = typer.Option(Path("out/model"), help="The folder to write."),
    results: Path | None = typer.Option(
        None, help="The folder written by regard evaluate --out. (default: evaluation/ in the run's folder)"
    ),
    license: str | None = typer.Option(
        None,
        help="License for the model card, by its identifier on the Hugging Face Hub: apache-2.0, mit. (default: none)",
    ),
) -> None:
    """Write a model that answers questions, with its vocabulary, answers and backbone, for the Hugging Face Hub.

    The folder has model.safetensors, config.json, vocabulary.json, the backbone and a model card, README.md. The card
    gives the accuracy and the attention quality if the model was evaluated: `regard evaluate out/scenes-vqa out/scenes
    --out out/scenes-vqa/evaluation`. `regard ask`, `regard evaluate` and, in Python, `Predictor.from_pretrained` take
    the folder; `hf upload me/my-model my-model` uploads it to the Hub.

        regard export model out/scenes-vqa --out my-model --license apache-2.0
    """
    from regard.vqa.predict import Predictor
    from regard.vqa.results import Results

    predictor = Predictor.load(run)
    if results is not None:
        predictor.results = Results.read(results)
    folder = predictor.save_pretrained(out, card=predictor.card(out.resolve().name, license=license))
    evaluated = "evaluated on " + ", ".join(predictor.results.splits) if predictor.results else "not evaluated"
    typer.echo(f"{folder}: {predictor.attention}, {len(predictor.answers)} answers, {evaluated}")
