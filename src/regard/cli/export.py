"""`regard export`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Write a trained part for use elsewhere.")
    group.command("backbone")(backbone)
    group.callback()(lambda: None)
    app.add_typer(group, name="export")


def backbone(
    run: Path = typer.Argument(..., help="The folder of a run, finished or not."),
    out: Path = typer.Option(Path("out/backbone"), help="The folder to write."),
) -> None:
    """Write the backbone of a run as safetensors and config.json; transformers' own load with `AutoModel` too.

    The run may be finished or not:
    the newest checkpoint is taken.

        regard export backbone out/photos --out my-backbone
    """
    from regard.backbones import fingerprint, load_backbone, save_backbone
    from regard.swav import load_run
    from regard.training import latest

    made = load_run(run).backbone if latest(run) is not None else load_backbone(run)
    typer.echo(f"{save_backbone(made, out)}: {made.dim} features, fingerprint {fingerprint(made)}")
