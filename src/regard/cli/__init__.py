"""The command line: `regard COMMAND`. Each module here adds its commands to the one application."""

from __future__ import annotations

import os
import sys
from importlib import import_module

# Modules of this package, each with a function add(app).
COMMANDS = (
    "bench",
    "demo",
    "doctor",
    "explore",
    "maps",
    "scenes",
    "pretrain",
    "features",
    "train",
    "evaluate",
    "ask",
    "compare",
    "export",
)


def main() -> None:
    """Run the command line; say what it needs, and what went wrong, in one line."""
    try:
        import typer
    except ImportError:
        sys.exit("regard: the command line needs some packages more. Try: pip install 'regard[show]'")
    from regard._problem import Problem

    app = typer.Typer(
        no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help="Visual attention in PyTorch."
    )

    @app.callback()
    def root(debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error.")) -> None:
        """Visual attention in PyTorch: affinities, maps and expectations."""
        if debug:
            os.environ["REGARD_DEBUG"] = "1"

    for name in COMMANDS:
        import_module(f"regard.cli.{name}").add(app)
    try:
        app()
    except (Problem, OSError) as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        sys.exit(f"regard: {error}")
    except ImportError as error:
        if os.environ.get("REGARD_DEBUG"):
            raise
        sys.exit(f"regard: this command needs a package more: {error}. Try: pip install 'regard[all]'")
