"""`regard explore`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from regard.cli._device import device_option
from regard.cli._folders import OUTPUTS


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explore)


def explore(
    checkpoint: Path | None = typer.Argument(
        None, help="The folder of a trained model. (default: the newest in out/, if there is one)"
    ),
    host: str = typer.Option("127.0.0.1", help="The address to listen on; 0.0.0.0 admits other machines."),
    port: int = typer.Option(8000, min=0, max=65535, help="The port to listen on; 0 for any free port."),
    browser: bool = typer.Option(
        True, help="Open the page in the browser, on a desktop: not over ssh, not as root, not without a terminal."
    ),
    look: str | None = typer.Option(
        None,
        help="A vision model of Hugging Face to look with: a folder, or a name in its cache. (default: the colours of "
        "patches)",
    ),
    device: str = device_option(),
) -> None:
    """Open a web page: see what a place of a picture looks at, ask a model, play with attention, watch transport.

    With a run it opens on pictures that the run carries, with their questions and the answers of people. Without a
    model it takes the newest of out/*, that of `regard demo` too; if there is none, it opens on a photograph, whose
    patches look at each other by their colours, or through the model of --look. By default only this machine can
    connect (see `--host`); there are no accounts.

        regard explore
        regard explore out/scenes-vqa --port 8080
        regard explore --look my-vit
    """
    from regard._problem import Problem
    from regard.explore import serve
    from regard.explore._runs import is_transformers

    if checkpoint is not None and not checkpoint.exists():
        raise Problem(f"{checkpoint} is not there. Give the folder of a trained model, or none.")
    if checkpoint is not None and is_transformers(checkpoint):
        raise Problem(f"{checkpoint} is a model of Hugging Face: regard explore --look {checkpoint}")
    if checkpoint is None and look is None:
        checkpoint = _newest()

    def ready(address: str) -> None:
        typer.echo(f"regard is at {address} (ctrl-c ends it)")
        if browser and sys.stdout.isatty() and on_desktop(os.environ, sys.platform):
            _open_browser(address)

    try:
        serve(checkpoint, host, port, ready, look, device)
    except KeyboardInterrupt as stopped:
        # All answers are sent and nothing is kept: there is no need to take torch and the model apart, for a second.
        print("regard: stopped.", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(getattr(stopped, "status", 130))


def on_desktop(environment: Mapping[str, str], platform: str) -> bool:
    """Whether a browser that is opened here would be seen: not over ssh, on Linux with a display and not as root.

    >>> on_desktop({"DISPLAY": ":0", "SSH_CONNECTION": "10.0.0.1"}, "linux"), on_desktop({}, "darwin")
    (False, True)
    """
    if any(name in environment for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")):
        return False
    if platform in ("win32", "darwin"):
        return True
    display = environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    return bool(display) and not (hasattr(os, "geteuid") and os.geteuid() == 0)


def _newest() -> Path | None:
    """The newest model in out/, which is said, with the others; None, also said, if there is none."""
    from regard.demo import DemoFolder
    from regard.explore._runs import answering_runs
    from regard.vqa.kinds import DEMO

    folders = [path.parent for path in OUTPUTS.glob("*/config.json")]
    found = answering_runs([*folders, DemoFolder(OUTPUTS / "demo").model(str(DEMO[-1]))])
    if not found:
        typer.echo("There is no model in out/: the page opens on a photograph.")
        return None
    others = f"; also found: {', '.join(map(str, found[1:]))}" if len(found) > 1 else ""
    typer.echo(f"The newest model in out/ is {found[0]}{others}")
    return found[0]


def _open_browser(address: str) -> None:
    """Open the page beside the server; a browser in the terminal would take the terminal from it."""
    import threading
    import webbrowser

    try:
        controller = webbrowser.get()
    except webbrowser.Error:
        return
    if type(controller) is not webbrowser.GenericBrowser:  # this very class is that of browsers in the terminal
        threading.Thread(target=controller.open, args=(address,), daemon=True).start()
