"""The style and the script of the page, and the policy that keeps it from loading anything else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files


@cache
def style() -> str:
    """The style: light, dark, narrow and printed."""
    return _text("report.css")


@cache
def script() -> str:
    """The script of the filter."""
    return _text("report.js")


def policy() -> str:
    """The content security policy of the page: no resource but its own style, pictures and this script."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )


def _text(name: str) -> str:
    return (files("regard.report") / "static" / name).read_text(encoding="utf-8").replace("\r\n", "\n")
