"""The command line: `regard COMMAND`. Each module here adds its commands to the one application.

Help, `--version` and completion import these modules and no torch: what is heavy is imported inside the functions.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import typer

# The help's groups, and the modules of this package in each; a module has a function add(app).
GROUPS = {
    "Start here": ("demo", "classify", "maps", "doctor"),
    "A backbone from pictures": ("pretrain", "index", "finetune", "evaluate", "export"),
    "Questions about pictures": ("vqa", "scenes", "split", "features", "train", "ask", "report", "compare", "thesis"),
    "Look and measure": ("look", "explore", "bench"),
}

STOPPED = 130  # the exit status after ctrl-c

HELP = """Visual attention in PyTorch: affinities, maps and expectations.

`regard COMMAND --help`, or `-h`, is a page about one command, with examples. To begin:

    regard demo        # from nothing to a model that answers, in about seven minutes
    regard maps        # one photograph under every map, in seconds
    regard explore     # a page in the browser to play with attention

Tab completion of commands, options and values: `regard --install-completion`, then open a
new shell. Rerun a command that was stopped to resume it. Errors are one line; `--debug`
shows the traceback.
"""


def main() -> None:
    """Run the command line; an error is one line on standard error."""
    try:
        import typer  # noqa: F401
    except ImportError:
        from regard._install import install_extra

        sys.exit(f"regard: the command line needs some packages more. Try: {install_extra('show')}")
    arguments = sys.argv[1:]
    if "--debug" in arguments:  # before the command or after it
        arguments.remove("--debug")
        os.environ["REGARD_DEBUG"] = "1"
    from regard._stop import ignore_signals, terminable

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no text in its encoding
            stream.reconfigure(errors="backslashreplace")
    with terminable():
        try:
            app = application(_command_in(arguments))
            status = app(arguments, prog_name="regard", standalone_mode=False)
            if status == STOPPED:  # some releases of typer return the status, others raise Abort
                raise KeyboardInterrupt
            sys.exit(status)
        except BaseException as error:
            if isinstance(error, SystemExit) or os.environ.get("REGARD_DEBUG"):
                raise
            _complain(error.__cause__ if isinstance(error, _Interrupted) and error.__cause__ else error)
        finally:
            atexit.register(ignore_signals)  # the last one is called first


def _command_in(arguments: list[str]) -> str | None:
    """The command among the arguments, the only one to import; None if there is none."""
    first = next((word for word in arguments if not word.startswith("-")), None)
    return first if any(first in names for names in GROUPS.values()) else None


def application(command: str | None = None) -> typer.Typer:
    """The application with all commands, or with one command only."""
    import typer
    from typer.core import TyperGroup

    class Commands(TyperGroup):
        """The commands; what a signal says is kept from typer, which would forget it."""

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as error:
                raise _Interrupted from error

    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        help=HELP,
        name="regard",
        context_settings={"help_option_names": ["--help", "-h"]},  # of all commands: they inherit it
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; at any place in the line."),
    ) -> None:
        """See HELP."""

    for group, names in GROUPS.items():
        for name in names if command is None else {command} & set(names):
            import_module(f"regard.cli.{name}").add(app)
            registered: list[Any] = [*app.registered_commands, *app.registered_groups]
            for entry in registered:
                if not isinstance(entry.rich_help_panel, str):
                    entry.rich_help_panel = group
    return app


def _line_end() -> str:
    """Ends a line of progress on a terminal, which is overwritten in place."""
    return "\n" if sys.stderr.isatty() else ""


class _Interrupted(Exception):
    """A KeyboardInterrupt in disguise; it is the cause."""


def _print_version(wanted: bool) -> None:
    """Print the version, and end, if `wanted`."""
    if wanted:
        import typer

        import regard

        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit


def _complain(error: BaseException) -> NoReturn:
    """Print the error in one line on standard error, and exit with its status."""
    from regard._problem import Problem, Unreachable

    if isinstance(error, OSError):
        from regard._files import disk_words

        sys.exit(f"regard: {disk_words(error) or error}")
    if isinstance(error, Problem | Unreachable):
        sys.exit(f"regard: {error}")
    if isinstance(error, ImportError):
        from regard._install import install_extra

        sys.exit(f"regard: this command needs a package more: {error}. Try: {install_extra('all')}")
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        from regard._ranks import is_first
        from regard._stop import Stopped

        stopped = error if isinstance(error, Stopped) else Stopped()
        if is_first():
            kept = f": {stopped.kept}" if stopped.kept else ""
            print(f"{_line_end()}regard: stopped{kept}. Rerun the command to resume the run.", file=sys.stderr)
        sys.exit(stopped.status)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        sys.exit(2)
    if callable(
        message := getattr(error, "format_message", None)
    ):  # wrong usage: an unknown option, a missing argument
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "regard"
        print(f"regard: {' '.join(message().split()).rstrip('.')}. Try: {command} --help", file=sys.stderr)
        sys.exit(2)
    text = " ".join(str(error).split())
    hint = "Not foreseen: run it again with --debug, and report what it shows."
    sys.exit(f"regard: {type(error).__name__}: {text} {hint}")
