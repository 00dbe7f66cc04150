"""`regard explore`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explore)


def explore(
    checkpoint: Path | None = typer.Argument(
        None, help="The folder of a trained model. (default: that of regard demo, if there is one)"
    ),
    host: str = typer.Option("127.0.0.1", help="The address to listen on; 0.0.0.0 admits other machines."),
    port: int = typer.Option(8000, min=0, max=65535, help="The port to listen on; 0 for any free port."),
) -> None:
    """Open a web page: ask a model and see where it looks, play with attention, watch transport.

    Without a model: that of `regard demo` in out/demo if there is one, else the playground alone. By default only this
    machine can connect (see `--host`); there are no accounts.

        regard explore
        regard explore out/vqa --port 8080
    """
    from regard._problem import Problem
    from regard.demo import DemoFolder
    from regard.explore import serve
    from regard.vqa.kinds import DEMO

    if checkpoint is not None and not checkpoint.exists():
        raise Problem(f"{checkpoint} is not there. Give the folder of a trained model, or none for the playground.")
    demo_model = DemoFolder(Path("out/demo")).model(str(DEMO[-1]))
    if checkpoint is None and demo_model.exists():
        checkpoint = demo_model
    serve(checkpoint, host, port, lambda address: typer.echo(f"regard is at {address} (ctrl-c ends it)"))
