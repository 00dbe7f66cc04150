"""`regard look`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from regard.looking import Look


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(look)


def look(
    what: list[str] = typer.Argument(
        ..., metavar="[MODEL] PICTURE...", help="A folder of a saved model or a name in the local cache; then pictures."
    ),
    out: Path = typer.Option(
        Path("out/look.png"),
        help="The picture to write, .png if it has no ending; JSON and CSV lie beside it. Of several, out-NAME.png.",
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
        regard look my-model one.jpg two.jpg three.jpg
        regard look my-model photos --masks masks
    """
    from regard._problem import Problem
    from regard.looking import VisionModel, look_at_patches, read_pairs, score, with_ending, write_looks, write_scores
    from regard.looking import look as look_with
    from regard.pictures import read

    has_model = len(what) > 1 and not Path(what[0]).is_file()
    pictures = what[1:] if has_model else what
    if masks is not None and len(pictures) > 1:
        raise Problem(f"--masks with {len(pictures)} pictures; expected one folder of pictures.")
    out = with_ending(out)  # before the model is loaded
    model = VisionModel.load(what[0], download=download) if has_model else None
    if model is None and (map is not None or masks is not None):
        raise Problem(f"{'--map' if map is not None else '--masks'} needs a model: regard look MODEL PICTURE.")
    if model is not None and masks is not None:
        with model.exchanged(map):
            scores = score(model, read_pairs(Path(what[-1]), masks))
        typer.echo(scores.text())
        for path in write_scores(scores, out):
            typer.echo(f"Written: {path}")
        return
    looks = {}
    for name in pictures:
        picture = read(name)
        looked = look_at_patches(picture) if model is None else look_with(model, picture, map)
        looks[name] = looked
        if len(pictures) > 1:
            typer.echo(name)
        _echo(looked)
    written = looks[pictures[0]].write(out) if len(looks) == 1 else write_looks(looks, out)
    for file in written:
        typer.echo(f"Written: {file}")


def _echo(looked: Look) -> None:
    """Print the table and the likeliest classes."""
    typer.echo(
        f"{'map':<14}{'layer':>6}{'head':>6}{'entropy':>10}{'of equal weights':>18}{'effective keys':>16}{'of':>7}"
    )
    for row in looked.table:
        chance = row["entropy of equal weights"]
        head = f"{row['map']:<14}{row['layer']:>6}{row['head']:>6}{row['entropy']:>10.3f}"
        typer.echo(f"{head}{chance:>18.3f}{row['effective']:>16.1f}{row['of']:>7}")
    for name, answers in looked.answers.items():
        typer.echo(f"{name}: " + ", ".join(f"{label} {share:.1%}" for label, share in answers.items()))
