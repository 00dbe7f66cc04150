"""`regard doctor`."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import typer

#: From an extra to one of its packages.
EXTRAS = {
    "show": "matplotlib",
    "swav": "lightning",
    "hf": "transformers",
    "explore": "fastapi",
    "transport": "POT",
    "bench": "entmax",
}


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor() -> None:
    """Print what is installed and what is missing: versions, threads, devices, native and Triton kernels, extras.

    For each missing extra, the command that installs it. Paste the output into a bug report.

        regard doctor
    """
    import torch

    import regard
    from regard import gpu, native
    from regard._install import install_extra
    from regard.training._device import devices_here

    lines = {
        "regard": regard.__version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "torch": torch.__version__,
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} processors",
        "devices": ", ".join(devices_here()),
        "native kernels": native.cpu_kernels(),
        "Triton kernels": gpu.triton_kernels(),
    }
    for extra, package in EXTRAS.items():
        try:
            lines[f"[{extra}]"] = f"{package} {version(package)}"
        except PackageNotFoundError:
            lines[f"[{extra}]"] = f"missing: {install_extra(extra)}"
    for name, text in lines.items():
        typer.echo(f"{name:<16}{text}")
