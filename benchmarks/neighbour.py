"""`--busy`: the same benchmarks while another process keeps one core busy, and both ratios side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_present: ContextVar[bool] = ContextVar("present", default=False)
# It ends by itself when the process that started it is gone.
SPIN = "import os\nstarted_by = os.getppid()\nwhile os.getppid() == started_by:\n    sum(range(100_000))\n"


@contextmanager
def busy_neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A block during which another process keeps one core busy: the last that this process may use."""
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    token = _present.set(True)
    try:
        yield process
    finally:
        _present.reset(token)
        process.kill()
        process.wait()


def folder(results: Path) -> Path:
    """Where results go: their folder, or `busy` in it while there is a neighbour."""
    return results / "busy" if _present.get() else results


HEADER = "| case | peer | ratio | with a busy neighbour |\n|---|---|---|---|"


def both(idle: dict[str, Any], busy: dict[str, Any]) -> list[str]:
    """Lines under HEADER of the cases that two records of a benchmark share: the ratio alone, and with a neighbour."""
    beside = ratios(busy)
    return [
        f"| {row['case']} | {row['peer']} | {row['ratio']:.2f}x | {beside[row['case'], row['peer']]:.2f}x |"
        for row in idle["rows"]
        if (row["case"], row["peer"]) in beside
    ]


def ratios(record: dict[str, Any] | None) -> dict[tuple[str, str], float]:
    """Theirs divided by ours, by case and peer; none without a record."""
    return {} if record is None else {(row["case"], row["peer"]): row["ratio"] for row in record["rows"]}


def compare(name: str, results: Path) -> None:
    """Print both columns of a benchmark that was run alone and with a neighbour."""
    idle, busy = (results / f"{name}.json", results / "busy" / f"{name}.json")
    if idle.exists() and busy.exists():
        print("\n".join([HEADER, *both(json.loads(idle.read_text()), json.loads(busy.read_text()))]), "\n", flush=True)
