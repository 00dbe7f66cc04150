"""The option `--device` of commands that have no settings of a run."""

from __future__ import annotations

from typing import Any

import typer

from regard.cli._complete import among
from regard.training._device import DEVICE_HELP, DEVICE_NAMES


def device_option() -> Any:
    """The option, with its help, its default and its completion."""
    return typer.Option("auto", help=DEVICE_HELP, autocompletion=among(DEVICE_NAMES))
