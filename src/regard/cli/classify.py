"""`regard classify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.backbones._known import BACKBONE_NAMES
from regard.classify.settings import ClassifierSettings
from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import Derived, applied, derived
from regard.training._settings import Running

if TYPE_CHECKING:
    from regard.classify.predict import Classification


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(classify)


@derived(
    changes=Derived(ClassifierSettings, "The classifier"),
    running=Derived(
        Running,
        "How it runs",
        only=frozenset({"device", "checkpoint_every", "log", "log_every", "precision", "progress", "resume"}),
    ),
)
def classify(
    changes: dict[str, Any],
    running: dict[str, Any],
    pictures: Path = typer.Argument(
        ...,
        help="Labelled pictures: a folder for each class, or folders train and val with these. To classify new "
        "pictures: the folder of a run.",
    ),
    new: list[Path] | None = typer.Argument(
        None, help="New pictures, files or folders, to classify with that run. (default: none)", show_default=False
    ),
    test: Path | None = typer.Option(
        None, help="Labelled pictures to test on. (default: those in val, else a part of PICTURES, drawn and stored)"
    ),
    masks: Path | None = typer.Option(
        None,
        help="A folder of masks, white where the object is, called as the pictures: measures whether it looks at the "
        "object. (default: none)",
    ),
    out: Path | None = typer.Option(
        None, help="The folder of the run; rerun to resume. (default: out/PICTURES-classes)"
    ),
    backbone: str | None = typer.Option(
        None,
        help="What makes the features: a name, a run of regard pretrain or a model of Hugging Face. (default: the best "
        "pretrained one on this machine)",
        autocompletion=among(BACKBONE_NAMES),
    ),
    size: int | None = typer.Option(
        None, min=8, help="Side that pictures are resized to, in pixels. (default: the backbone's)"
    ),
    drawing: Path | None = typer.Option(
        None,
        "--picture",
        help="Draw where it looked on a new picture into this file: .png, .jpg, .webp, .pdf or .svg. (default: none)",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print all about new pictures as JSON; a line per picture."),
) -> None:
    """From a folder of labelled photographs to a classifier that shows where it looked; then classify new ones.

    Takes a pretrained backbone if there is one on this machine, says how long it will take, stores features, trains a
    pool of the cells (an attention) and a linear layer on them, evaluates on held-out pictures beside average pooling
    and the commonest class, and writes a report. Another `--pool` in the same folder takes the features from there and
    joins the report. Rerun to resume.

        regard classify photos/                                  # photos/cat/*.jpg, photos/dog/*.jpg, ...
        regard classify photos/ --pool discrete-sparsemax --masks masks/
        regard classify out/photos-classes new.jpg --picture looked.png
    """
    from regard._problem import Problem

    if new:
        if given := [n for n, value in (("--test", test), ("--masks", masks), ("--out", out)) if value is not None]:
            raise Problem(f"{given[0]} is for training. Leave it out to classify new pictures.")
        if others := (changes.keys() - {"pool"}) | (running.keys() - {"device"}):
            option = min(others).replace("_", "-")
            raise Problem(f"--{option} is for training. Leave it out to classify new pictures.")
        _classify_new(pictures, new, changes.get("pool"), drawing, as_json, running.get("device", "auto"))
        return
    if drawing is not None or as_json:
        raise Problem("--picture and --json are for new pictures. Name them: regard classify RUN new.jpg")
    from regard.classify import train_classifier
    from regard.classify.folder import ClassifierFolder

    if ClassifierFolder(pictures).is_classifier:
        raise Problem(
            f"{pictures} is a classifier. Name pictures to classify with it: regard classify {pictures} new.jpg"
        )
    folder = out or default_folder(pictures, "classes")
    outcome = train_classifier(
        pictures,
        folder,
        applied(ClassifierSettings(), changes),
        test=test,
        masks=masks,
        backbone=backbone,
        size=size,
        running=applied(Running(), running),
        say=typer.echo,
    )
    typer.echo("")
    typer.echo(outcome.summary.table())
    typer.echo("")
    typer.echo(outcome.summary.sentence)
    typer.echo(f"{outcome.seconds:.0f} s. Where it looked, and where it is right and wrong: open {outcome.report.path}")
    typer.echo(f"New pictures: regard classify {folder} PICTURE --picture looked.png")


def _classify_new(
    run: Path, new: list[Path], pool: str | None, drawing: Path | None, as_json: bool, device: str
) -> None:
    """Classify pictures, print their classes, and draw where it looked; what cannot be read is named and skipped."""
    from regard._problem import Problem
    from regard.classify import Classifier
    from regard.pictures import read
    from regard.pictures._sources import Files
    from regard.training._device import choose_device

    paths = [path for one in new for path in (Files(one).paths if one.is_dir() else [one])]
    if drawing is not None:
        from regard.report import check_drawing

        check_drawing(drawing)  # before the model is loaded
        if len(paths) > 1:
            raise Problem(f"--picture draws one new picture, and there are {len(paths)}. Name one.")
        if drawing.exists() and paths[0].exists() and drawing.samefile(paths[0]):
            raise Problem(f"{drawing} is the picture itself. Draw into another file: --picture looked.png")
    try:
        classifier = Classifier.load(run, pool).to(choose_device(device, needs_float64=True))
    except Problem:
        raise
    except ValueError as error:  # a pool that does not exist
        raise Problem(str(error)) from error
    for path in paths:
        try:
            pixels = read(path)
        except Problem as problem:
            if len(paths) == 1:
                raise
            typer.echo(f"skipped: {problem}", err=True)
            continue
        found = classifier.classify(pixels)
        if as_json:
            typer.echo(json.dumps({"picture": str(path)} | found.to_json()))
        elif len(paths) > 1:
            typer.echo(f"{path}\t{found.answer}\t{found.confidence:.2f}")
        else:
            typer.echo(_told(found))
        if drawing is not None:
            from regard.report import Entry, write_drawing

            written = write_drawing(drawing, Entry(pixels, found.answer, [found], name=path.name, labelled=True))
            typer.echo(f"Drawn: {written}", err=as_json)


def _told(found: Classification) -> str:
    """The class, the likeliest ones, and where it looks most."""
    from regard.vqa.looks import looks_in_words

    likely = "  ".join(f"{answer} {score:.2f}" for answer, score in found.top)
    return f"{found.answer}\n{likely}\n{found.attention}: {looks_in_words(found.weights, found.density)}"
