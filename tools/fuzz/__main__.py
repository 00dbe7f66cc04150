"""Try random cases for a stated time: `python -m tools.fuzz`, or `make fuzz`.

    python -m tools.fuzz --seconds 300              # all targets, each an equal part of the time
    python -m tools.fuzz maps attend --seed 7
    python -m tools.fuzz maps --case 7:1234         # one case again, with its traceback

Each target runs in a process of its own, so that a crash or a hang is a finding with the number of its case, and not
the end. A table of the cases that were tried is printed; the status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.fuzz.target import LONGEST, MOST, TARGETS, case_of, tried

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Read the command line, run the targets, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all of them")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all targets together; default 300")
    parser.add_argument("--cases", type=int, help="of each target at most; default any number")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--case", help="SEED:NUMBER of one case to try again")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    targets = options.targets or TARGETS
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if options.case:
        word, number = options.case.split(":")
        print(case_of(targets[0])(random.Random(f"{targets[0]}{word}:{number}")))
        return 0
    print(f"seed {seed}, {options.seconds:g} s", flush=True)
    print("| target | cases | found | what became of them |\n|---|---|---|---|", flush=True)
    well = True
    for target in targets:
        counts, found = _separately(target, options.seconds / len(targets), seed, options.cases)
        parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(f"| {target} | {sum(counts.values())} | {len(found)} | {parts} |", flush=True)
        for case, words, trace in found:
            well = False
            print(f"    {target} --case {case}: {words}\n{trace}", flush=True)
    return int(not well)


def _separately(target: str, seconds: float, seed: int, most: int | None) -> tuple[Counter[str], list[list[str]]]:
    """Counts and findings of a target, from processes of its own: after a crash or a hang the next goes on."""
    counts: Counter[str] = Counter()
    found: list[list[str]] = []
    end, first = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        while (left := end - time.monotonic()) > 0 and len(found) < MOST and (most is None or first < most):
            report.unlink(missing_ok=True)
            cases = None if most is None else most - first
            arguments = (target, left, seed, first, cases, report)
            process = multiprocessing.get_context("spawn").Process(target=tried, args=arguments)
            process.start()
            process.join(left + 2 * LONGEST + 60)
            hung = process.is_alive()
            if hung:
                process.kill()
                process.join()
            said = json.loads(report.read_text()) if report.is_file() else {"case": first, "counts": {}, "found": []}
            counts += Counter(said["counts"])
            found += said["found"]
            if process.exitcode == 0:
                for name in said["counts"]:
                    counts.setdefault(name, 0)
                break
            how = "did not end" if hung else f"ended with status {process.exitcode}"
            found.append([f"{seed}:{said['case']} or soon after", f"the process {how}", ""])
            first = said["case"] + 100
    return counts, found


if __name__ == "__main__":
    sys.exit(main())
