"""`regard maps`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(maps)


def maps(out: Path = typer.Option(Path("out/maps.png"), help="The PNG file to write.")) -> None:
    """Draw the attention of one patch of a photograph under every map, side by side.

    Writes a picture, and prints per map the size of the support, the entropy and the total variation. Needs no training
    and no data.

        regard maps
        regard maps --out maps.png
    """
    from regard._problem import Problem
    from regard.patches import draw_maps

    try:
        result = draw_maps(out)
    except OSError as error:
        raise Problem(f"cannot write {out}: {error.strerror}. Choose another place with --out.") from error
    typer.echo(result.table())
    typer.echo(f"Picture: {result.picture}")
