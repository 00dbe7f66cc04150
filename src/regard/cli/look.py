"""`regard look`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(look)


def look(
    what: list[str] = typer.Argument(
        ..., metavar="[MODEL] PICTURE", help="A folder of a saved model or a name in the local cache; then a picture."
    ),
    out: Path = typer.Option(
        Path("out/look.png"), help="The picture to write, .png if it has no ending; JSON and CSV lie beside it."
    ),
    map: str | None = typer.Option(None, help='Exchange the map of the model, e.g. "entmax-1.5", and show both.'),
    masks: Path | None = typer.Option(
        None, help="Score the heads: PICTURE is a folder, and this a folder of masks or a COCO-like JSON file."
    ),
    download: bool = typer.Option(False, "--download", help="Download a model that is not in the local cache."),
) -> None:
    """Where a vision model looks in a picture: every layer and head on one scale, the means, the rollout.

    Without a model: what the patches of the picture look at by their colours, under several maps. Equal weights are the
    chance level, printed beside. With --masks, which head finds objects: mass, pointing and divergence, with chance
    levels and intervals.

        regard look photo.jpg
        regard look facebook/dinov2-small photo.jpg --download
        regard look my-model photo.jpg --map entmax-1.5 --out look.png
        regard look my-model photos --masks masks
    """
    from regard._problem import Problem
    from regard.looking import VisionModel, look_at_patches, read_pairs, score, with_ending, write_scores
    from regard.looking import look as look_with
    from regard.pictures import read

    if len(what) > 2:
        raise Problem(f"{len(what)} arguments; expected a picture, or a model and a picture.")
    out = with_ending(out)  # before the model is loaded
    model = VisionModel.load(what[0], download=download) if len(what) == 2 else None
    if model is None and (map is not None or masks is not None):
        raise Problem(f"{'--map' if map is not None else '--masks'} needs a model: regard look MODEL PICTURE.")
    if model is not None and masks is not None:
        with model.exchanged(map):
            scores = score(model, read_pairs(Path(what[-1]), masks))
        typer.echo(scores.text())
        for path in write_scores(scores, out):
            typer.echo(f"Written: {path}")
        return
    picture = read(what[-1])
    looked = look_at_patches(picture) if model is None else look_with(model, picture, map)
    typer.echo(
        f"{'map':<14}{'layer':>6}{'head':>6}{'entropy':>10}{'of equal weights':>18}{'effective keys':>16}{'of':>7}"
    )
    for row in looked.table:
        chance = row["entropy of equal weights"]
        head = f"{row['map']:<14}{row['layer']:>6}{row['head']:>6}{row['entropy']:>10.3f}"
        typer.echo(f"{head}{chance:>18.3f}{row['effective']:>16.1f}{row['of']:>7}")
    for name, answers in looked.answers.items():
        typer.echo(f"{name}: " + ", ".join(f"{label} {share:.1%}" for label, share in answers.items()))
    for path in looked.write(out):
        typer.echo(f"Written: {path}")
