"""`regard evaluate`: of a backbone or of a model that answers questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from regard.cli._complete import among
from regard.cli._hide import checked_hide
from regard.cli._options import SHARED, Derived, applied, derived, only_first_speaks
from regard.training._settings import Running
from regard.vqa.hide_names import HIDE_NAMES
from regard.vqa.kinds import EVALUATED, NAMES
from regard.vqa.settings import ModelSettings

EVALUATED_NAMES = ", ".join(map(str, EVALUATED))
# What has no parameters: a trained model can be evaluated with another. Coordinates and the affinity are learned with.
LOOKING = frozenset({"basis", "padding", "ridge_penalty", "price", "em_iterations", "map"})


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(evaluate)


@derived(
    changes=Derived(ModelSettings, "Another attention in a model that answers", only=LOOKING, default="the model's"),
    running=SHARED,
)
def evaluate(
    changes: dict[str, Any],
    running: dict[str, Any],
    model: Path = typer.Argument(..., help="The folder of a run, an exported model or a backbone."),
    data: Path | None = typer.Argument(
        None,
        help="Labelled pictures, also the URL of tars, or questions with answers. (default: for a backbone "
        "scikit-learn's digits, for a run of regard vqa its own questions)",
        show_default=False,
        path_type=str,
    ),
    test: Path | None = typer.Option(
        None,
        help="Data to test on. (default: for a backbone a held-out part of DATA, else DATA)",
        path_type=str,
    ),
    pictures: Path | None = typer.Option(None, help="The folder of the pictures. (default: beside the questions)"),
    regions: Path | None = typer.Option(
        None,
        help="The folder of masks of what answers rest on: those that the questions name, else the one with the "
        "picture's name. (default: those that the questions name, beside them)",
    ),
    attention: list[str] = typer.Option(
        [],
        help="An output attention to evaluate with beside the model's; repeat for several. regard ask --help lists "
        f"them. (default: {EVALUATED_NAMES})",
        autocompletion=among(NAMES),
    ),
    faithfulness: int = typer.Option(
        0,
        min=0,
        help="Questions of each split for which cells of the picture are hidden in the order of the attention, to see "
        "whether the answer rests on what is shown; 30 passes of the backbone a picture, 28 a question and attention.",
    ),
    hide: str | None = typer.Option(
        None,
        help="What takes the place of a hidden cell: mean (the mean colour of the picture), blur, or features (the "
        "mean of the stored features). (default: mean; features without pictures or backbone)",
        autocompletion=among(HIDE_NAMES),
    ),
    out: Path = typer.Option(
        None, help="Where to write the numbers: for a backbone a JSON file, else a folder. (default: nowhere)"
    ),
) -> None:
    """Evaluate a model on labelled data that it has not seen.

    A backbone: nearest neighbours (k-NN) and a linear probe, compared with an untrained backbone and raw pixels, with
    intervals. A model that answers questions: the official accuracy and the attention quality, also with other
    attentions; beside them the commonest answer, the question alone, an even spread and a blob in the centre. Several
    processes (`--devices`, or under torchrun) share the work, with the same numbers.

        regard evaluate out/photos labelled/
        regard evaluate out/scenes-vqa out/scenes --out out/scenes-vqa/evaluation
        regard evaluate out/mine mine.csv --pictures photos/ --regions masks/
        regard evaluate out/questions                            # after regard vqa photos/ questions.csv
        regard evaluate out/scenes-vqa out/scenes --attention mixture-selected --price 0.5 --basis thesis-100
        regard evaluate out/scenes-vqa out/scenes --faithfulness 100  # does the answer rest on what attention shows?
    """
    from regard._problem import Problem
    from regard.training import read_config

    only_first_speaks()
    how = applied(Running(), running)
    config = read_config(model)
    kind = config.get("regard", config).get("kind") or ("backbone" if "model_type" in config else None)
    if kind == "vqa":
        named = test or data
        place = None if named is None else Path(named)
        _of_questions(model, place, out, pictures, regions, attention, changes, faithfulness, hide, how)
    elif kind not in ("backbone", "swav", "finetune"):
        raise Problem(f"{model} holds a model of kind {kind!r}. It must be one of backbone, swav, finetune, vqa.")
    elif given := [
        *(["pictures"] if pictures is not None else []),
        *(["regions"] if regions is not None else []),
        *(["attention"] if attention else []),
        *(["faithfulness"] if faithfulness else []),
        *(["hide"] if hide is not None else []),
        *changes,
    ]:
        option = f"--{given[0].replace('_', '-')}"
        raise Problem(f"{option} is for questions; the pictures of a backbone are DATA itself. Leave it out.")
    else:
        _of_pictures(model, data, test, out, how)


def _of_pictures(model: Path, data: Path | None, test: Path | None, out: Path | None, running: Running) -> None:
    """k-NN and linear probe."""
    from regard._files import replacing
    from regard.backbones import load_backbone
    from regard.pictures import Files, Pictures, open_pictures, squeezed
    from regard.swav import digits, evaluate_backbone
    from regard.training._together import together

    train: Pictures
    held_out: Pictures | None
    if data is None:
        train, held_out = digits()
        typer.echo("No data given: scikit-learn's digits.")
    else:
        train, held_out = open_pictures(data, say=typer.echo), None if test is None else open_pictures(test)
        files = [path for source in (train, held_out) if isinstance(source, Files) for path in source.paths]
        if warning := squeezed(files):
            typer.echo(f"Warning: {warning}", err=True)
    with together(running) as group:
        evaluation = evaluate_backbone(load_backbone(model).to(group.device), train, held_out, group=group)
    typer.echo(evaluation.table())
    if out is not None and group.first:
        with replacing(out) as beside:
            beside.write_text(json.dumps(evaluation.as_dict(), indent=2) + "\n")
        typer.echo(f"Numbers: {out}")


def _of_questions(
    model: Path,
    questions: Path | None,
    out: Path | None,
    pictures: Path | None,
    regions: Path | None,
    attention: list[str],
    changes: dict[str, Any],
    faithfulness: int,
    hide: str | None,
    running: Running,
) -> None:
    """Accuracy and attention quality, with the attention of the training and with others."""
    from regard._problem import Problem
    from regard._ranks import is_first
    from regard.training._together import together
    from regard.vqa.evaluate_run import evaluate_run
    from regard.vqa.folder import AnsweringFolder
    from regard.vqa.kinds import parse
    from regard.vqa.masks import check_folder

    folder = AnsweringFolder(model)
    source = folder.read_source()
    if questions is None and source is not None and folder.questions.is_file():
        questions, pictures = folder.questions, pictures or Path(source.pictures)
    if questions is None:
        raise Problem("this model answers questions: say which. Example: regard evaluate out/scenes-vqa out/scenes")
    check_folder("--regions", regions)
    for kind in attention:
        try:
            parse(kind)
        except ValueError as error:
            raise Problem(str(error)) from error

    def say(line: str) -> None:
        if is_first():
            typer.echo(line, err=True)

    with together(running, needs_float64=True) as group:
        text = evaluate_run(
            model,
            questions,
            attention or None,
            out=out,
            pictures=pictures,
            regions=regions,
            progress=say,
            changes=changes,
            faithfulness=faithfulness,
            hide=checked_hide(hide, faithfulness),
            group=group,
        )
    typer.echo(text)
    if out is not None:
        typer.echo(f"Numbers and answers: {out}")
