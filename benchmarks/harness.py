"""Timing, memory and reports shared by all benchmarks.

Contestants run interleaved, so that noise affects all of them alike, and the result is the ratio of medians. Memory is
the growth of peak memory (high-water mark of the resident set) in a child process.
"""

from __future__ import annotations

import importlib
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks import limits, neighbour
from regard import native
from regard._files import replacing

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median and the middle half of the runs."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Row:
    """One line of a report: our figure and that of another library, the peer, in one unit, and the promise."""

    case: str
    unit: str
    ours: float
    peer: str
    theirs: float
    promise: str = ""
    kept: bool | None = None
    limit: float | None = None  # the least that the machine allows, in the same unit: see benchmarks/limits.py

    @property
    def ratio(self) -> float:
        """How many times better ours is (above one) or worse (below one): theirs divided by ours."""
        return self.theirs / self.ours if self.ours > 0 else float("inf")


def race(
    contestants: dict[str, Callable[[], object]],
    seconds: float = 1.0,
    least: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run the contestants in turn, after one warm-up each; their times in milliseconds.

    `contestants`: functions by name.
    `seconds`: shortest duration of the race; default 1.
    `least`: smallest number of runs of each; default 5.
    `clock`: returns seconds; default wall time.

    Every other round is in reverse order, so that none always runs after one that fills, or empties, the caches.
    """
    for run in contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    start = time.perf_counter()
    order = list(contestants.items())
    while time.perf_counter() - start < seconds or any(len(t) < least for t in times.values()):
        order.reverse()
        for name, run in order:
            before = clock()
            run()
            times[name].append(1e3 * (clock() - before))
    return {name: _summary(t) for name, t in times.items()}


def on_plain_path(run: Callable[[], object]) -> Callable[[], object]:
    """`run` without the native kernels."""

    def plain() -> object:
        with native.switched_off():
            return run()

    return plain


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))


def peak_memory(setup: str, run: str) -> float:
    """MB by which the code `run` raises the peak memory of a fresh process that has executed the code `setup`."""
    code = f"{PEAK}\n{setup}\nbefore = peak()\n{run}\nprint('PEAK', peak() - before)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the measured process failed:\n{done.stderr}")
    return float(done.stdout.split("PEAK")[1])


# Linux's VmHWM is per program; getrusage of a child process starts from the size of its parent.
PEAK = """
import re, resource, sys
def peak():
    try:
        return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
"""


def installed(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def peer(module: str) -> Any | None:
    """The module of another library; None, with a printed note, if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"skipped: {module} ({error})", flush=True)
        return None


def report(name: str, rows: Iterable[Row]) -> None:
    """Print rows as they are measured, then write benchmarks/results/NAME.json."""
    print(HEADER, flush=True)
    measured = []
    for row in rows:
        measured.append(row)
        print(line(row), flush=True)
    record: dict[str, Any] = {
        "benchmark": name,
        "machine": {
            "processor": _processor(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "versions": {p: installed(p) for p in ("torch", "numpy", "entmax", "POT", "geomloss", "lightly")},
        },
        "rows": [asdict(row) | {"ratio": row.ratio} for row in measured],
    }
    if any(row.limit for row in measured):
        record["machine"] |= asdict(limits.machine())
    path = neighbour.folder(RESULTS) / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(json.dumps(record, indent=1) + "\n")
    print(f"-> {path.relative_to(RESULTS.parent.parent)}\n")


HEADER = "| case | ours | peer | theirs | ratio | over the limit | promise |\n|---|---|---|---|---|---|---|"


def line(r: Row) -> str:
    """A row of the Markdown table under HEADER."""
    verdict = {None: r.promise, True: f"{r.promise}: kept", False: f"{r.promise}: NOT KEPT"}[r.kept]
    over = f"{r.ours / r.limit:.2f}x" if r.limit else ""
    figures = f"{r.ours:.3g} {r.unit} | {r.peer} | {r.theirs:.3g} {r.unit} | {r.ratio:.2f}x"
    return f"| {r.case} | {figures} | {over} | {verdict} |"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
