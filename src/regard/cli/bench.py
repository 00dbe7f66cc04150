"""`regard bench`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    names: list[str] = typer.Argument(None, help="The benchmarks to run. (default: all)"),
    busy: bool = typer.Option(
        False, "--busy", help="Measure again while another process keeps one core busy, and print both. (default: no)"
    ),
) -> None:
    """Measure every algorithm against its peers on this machine: tables, JSON, docs/benchmarks.md and a plot.

    Works in a clone of the project, where the benchmarks are.

        regard bench
        regard bench maps transport page
        regard bench --busy maps
    """
    import regard
    from regard._problem import Problem

    root = Path(regard.__file__).resolve().parents[2]
    if not (root / "benchmarks" / "__main__.py").exists():
        raise Problem("the benchmarks are not part of the installed package. Clone the project, then: make bench")
    sys.path.insert(0, str(root))
    sys.argv = ["benchmarks", *(["--busy"] if busy else []), *(names or [])]
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=False)
