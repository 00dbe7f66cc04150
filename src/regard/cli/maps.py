"""`regard maps`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(maps)


def maps(out: Path = typer.Option(Path("out/maps.png"), help="The picture to write.")) -> None:
    """Put the maps side by side on a photograph: where does one patch look?

    Writes a picture, and prints for each map how many patches have weight, the entropy, and how ragged it is. Needs no
    training and no data.

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
