"""`regard explore`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explore)


def explore(
    checkpoint: Path | None = typer.Argument(None, help="A trained model's folder; or else make demo's."),
    host: str = typer.Option("127.0.0.1", help="The address to listen on; 0.0.0.0 lets other machines in."),
    port: int = typer.Option(8000, min=0, max=65535, help="The port; 0 for any that is free."),
) -> None:
    """Open a web page: ask a model and see where it looks, play with attention, watch transport.

    Without a model: that of `regard demo` if there is one, else the playground alone. It listens on this machine only,
    unless `--host` says otherwise; it has no accounts.

        regard explore
        regard explore out/vqa --port 8080
    """
    from regard._problem import Problem
    from regard.demo import DemoFolder
    from regard.explore import serve
    from regard.vqa.kinds import DEMO

    if checkpoint is not None and not checkpoint.exists():
        raise Problem(f"{checkpoint} is not there. Give the folder of a trained model, or none for the playground.")
    demonstrated = DemoFolder(Path("out/demo")).model(str(DEMO[-1]))
    if checkpoint is None and demonstrated.exists():
        checkpoint = demonstrated
    serve(checkpoint, host, port, lambda address: typer.echo(f"regard is at {address} (ctrl-c ends it)"))
