"""The command line: `regard demo`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        import typer
    except ImportError:
        sys.exit("regard: the command line needs some packages more. Try: pip install 'regard[show]'")

    app = typer.Typer(
        no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help="Visual attention in PyTorch."
    )

    @app.callback()
    def _root() -> None:
        """Visual attention in PyTorch: affinities, maps and expectations."""

    @app.command()
    def demo(out: Path = typer.Option(Path("out/demo.png"), help="The picture to write.")) -> None:  # noqa: B008
        """Put the maps side by side on a photograph: where does one patch look?

        Example: regard demo --out maps.png
        """
        from regard.demo import demo as run

        try:
            result = run(out)
        except OSError as error:
            typer.echo(f"regard demo: cannot write {out}: {error.strerror}. Choose another place with --out.", err=True)
            raise typer.Exit(1) from None
        typer.echo(result.table())
        typer.echo(f"Picture: {result.picture}")

    app()
