"""One target of the fuzzing, in a process of its own."""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

NUMBERS = ("maps", "sinkhorn", "attend", "losses", "distances", "bases", "mixtures")
FILES = ("picture", "checkpoint", "table")
TARGETS = (*NUMBERS, *FILES, "page")
LONGEST = 60  # seconds that a case may take
MOST = 5  # findings of one target that are kept


def case_of(target: str) -> Callable[[random.Random], Counter[str]]:
    """The function that tries one case of a target, and counts what became of it."""
    import torch

    torch.set_num_threads(1)
    if target == "page":
        from tools.fuzz import page

        operations = page.operations()
        if not operations:
            raise ModuleNotFoundError("schemathesis")
        return lambda draw: Counter(page.api(draw, operations))
    from tools.fuzz import files, numbers

    if target == "checkpoint":
        files.runs()  # made before the first case, which has a bounded time
    function = getattr(numbers if target in NUMBERS else files, target)
    return lambda draw: Counter([function(draw)])


def tried(target: str, seconds: float, seed: int, first: int, most: int | None, report: Path) -> None:
    """Try cases until the time is over, and write counts and findings to `report` as they come."""
    faulthandler.enable()
    counts: Counter[str] = Counter()
    found: list[list[str]] = []

    def write(case: int) -> None:
        report.write_text(json.dumps({"case": case, "counts": counts, "found": found}))

    def too_long(*_: object) -> None:
        raise TimeoutError(f"a case took more than {LONGEST} s")

    signal.signal(signal.SIGALRM, too_long)
    try:
        one = case_of(target)
    except ModuleNotFoundError as error:
        report.write_text(json.dumps({"case": 0, "counts": {f"left out: {error} is not installed": 0}, "found": []}))
        return
    end, case, written = time.monotonic() + seconds, first, 0.0
    while time.monotonic() < end and len(found) < MOST and (most is None or case < first + most):
        if time.monotonic() - written > 0.5 or target in ("checkpoint", "page"):
            write(case)
            written = time.monotonic()
        signal.alarm(LONGEST)
        try:
            counts += one(random.Random(f"{target}{seed}:{case}"))
        except Exception as error:
            found.append([f"{seed}:{case}", f"{type(error).__name__}: {error}"[:600], traceback.format_exc()[-3000:]])
        finally:
            signal.alarm(0)
        case += 1
    write(case)
    if target == "checkpoint":
        from tools.fuzz import files

        files.remove_runs()
