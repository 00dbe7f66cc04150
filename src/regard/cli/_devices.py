"""The options that commands hand on to Lightning: where and how exactly to compute."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Devices = Annotated[str, typer.Option(help="Lightning's: how many devices or CPU processes, or auto.")]
NumNodes = Annotated[int, typer.Option(min=1, help="Lightning's: how many machines.")]
Strategy = Annotated[str, typer.Option(help="Lightning's: ddp for several devices, ...")]
Precision = Annotated[str, typer.Option(help="Lightning's: 32-true, bf16-mixed, or 16-mixed on a GPU.")]


def chosen(devices: str, num_nodes: int, strategy: str, precision: str) -> dict[str, Any]:
    """As `regard.training.fit` takes them.

    >>> chosen("2", 1, "ddp", "32-true")
    {'devices': 2, 'num_nodes': 1, 'strategy': 'ddp', 'precision': '32-true'}
    """
    return {
        "devices": int(devices) if devices.lstrip("-").isdigit() else devices,
        "num_nodes": num_nodes,
        "strategy": strategy,
        "precision": precision,
    }


def only_first_speaks() -> None:
    """Be silent in the further processes that Lightning started with the same command."""
    import os
    import sys

    if os.environ.get("LOCAL_RANK", "0") != "0" or os.environ.get("NODE_RANK", "0") != "0":
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
