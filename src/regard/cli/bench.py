"""`regard bench`."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import typer

from regard.cli._complete import among
from regard.training._device import DEVICE_NAMES


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    names: list[str] = typer.Argument(None, help="The benchmarks to run. (default: all)"),
    device: str | None = typer.Option(
        None,
        help="Measure sparse maps and attention on this device, beside what else computes them there and beside what "
        "was predicted: cuda, cuda:1, xpu, or cpu to try it out. (default: the benchmarks of the CPU)",
        autocompletion=among(DEVICE_NAMES),
    ),
    out: Path | None = typer.Option(
        None, help="The file for the figures of --device. (default: out/bench-DEVICE.json)"
    ),
    busy: bool = typer.Option(
        False, "--busy", help="Measure again while another process keeps one core busy, and print both. (default: no)"
    ),
) -> None:
    """Measure every algorithm against its peers on this machine: tables, JSON, docs/benchmarks.md and a plot.

    Works in a clone of the project, where the benchmarks are.

        regard bench
        regard bench maps transport page
        regard bench --device cuda
        regard bench --busy maps
    """
    import regard
    from regard._problem import Problem

    root = Path(regard.__file__).resolve().parents[2]
    if not (root / "benchmarks" / "__main__.py").exists():
        raise Problem("the benchmarks are not part of the installed package. Clone the project, then: make bench")
    if device is None and out is not None:
        raise Problem("--out is for --device; other benchmarks write to benchmarks/results. Leave it out.")
    if device is not None and busy:
        raise Problem("--busy is for the benchmarks of the CPU. Leave out one of --device and --busy.")
    if device is not None and names:
        raise Problem(f"--device measures what runs on devices, and not {names[0]}. Leave one of them out.")
    sys.path.insert(0, str(root))
    if device is not None:
        importlib.import_module("benchmarks.gpu").main(device, out)
        return
    sys.argv = ["benchmarks", *(["--busy"] if busy else []), *(names or [])]
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=False)
