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
    map: str | None = typer.Option(
        None, help='Exchange the map of the model, e.g. "entmax-1.5", and show both; with --masks, score that one.'
    ),
    masks: Path | None = typer.Option(
        None,
        help="Score the heads on pictures or a folder: a folder of their masks, or of outlines as YOLO has them, or a "
        "COCO-like JSON file.",
    ),
    prompt: str | None = typer.Option(
        None, help="Ask a model of pictures and text (LLaVA, Qwen-VL): what the token before its answer looks at."
    ),
    tower: bool = typer.Option(False, "--tower", help="Of a model of pictures and text, look at its vision tower."),
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
        regard look my-llava photo.jpg --prompt "What is on the sofa?"
        regard look my-model photos --masks masks
        regard look my-model one.jpg two.jpg --masks boxes.json
    """
    from regard._problem import Problem
    from regard.looking import (
        load_looking,
        look_at_patches,
        map_to_exchange,
        read_pairs,
        score,
        with_ending,
        write_looks,
        write_scores,
    )
    from regard.looking import look as look_with
    from regard.pictures import read

    has_model = len(what) > 1 and not _is_picture(what[0])
    pictures = what[1:] if has_model else what
    is_folder = masks is not None and len(pictures) == 1 and Path(pictures[0]).is_dir()
    missing = [] if is_folder else [name for name in pictures if not Path(name).is_file()]
    if missing:
        raise Problem(f"{missing[0]} is not a file. Check the path.")
    only_with_model = {"--map": map, "--masks": masks, "--prompt": prompt, "--tower": tower or None}
    if not has_model and (given := [option for option, value in only_with_model.items() if value is not None]):
        raise Problem(f"{given[0]} needs a model: regard look MODEL PICTURE {given[0]}.")
    out = with_ending(out)  # before the model is loaded
    if map is not None:
        map_to_exchange(map, causal=prompt is not None)
    model = load_looking(what[0], prompt=prompt, tower=tower, download=download) if has_model else None
    if model is not None and masks is not None:
        paths = [Path(name) for name in pictures]
        scores = score(model, read_pairs(paths[0] if is_folder else paths, masks), map)
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


def _is_picture(name: str) -> bool:
    """Whether a name is that of a picture, be it there or not; every other one is a model's."""
    from regard.pictures._sources import SUFFIXES

    return Path(name).is_file() or (Path(name).suffix.lower() in SUFFIXES and not Path(name).is_dir())


def _echo(looked: Look) -> None:
    """Print the table, with the figures of equal weights in brackets, and the likeliest classes or words."""
    columns = ("entropy (equal weights)", "effective keys (all)", "on patches (equal weights)")
    typer.echo(f"{'map':<14}{'layer':>6}{'head':>6}" + "".join(f"{name:>28}" for name in columns))
    for row in looked.table:
        cells = (
            f"{row['entropy']:.3f} ({row['entropy of equal weights']:.3f})",
            f"{row['effective']:.1f} ({row['of']:g})",
            f"{row['on patches']:.3f} ({row['on patches of equal weights']:.3f})",
        )
        typer.echo(f"{row['map']:<14}{row['layer']:>6}{row['head']:>6}" + "".join(f"{cell:>28}" for cell in cells))
    for name, answers in looked.answers.items():
        typer.echo(f"{name}: " + ", ".join(f"{label} {share:.1%}" for label, share in answers.items()))
