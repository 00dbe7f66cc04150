"""Time of the first public name against `import torch`, and what the command line's help costs; in fresh processes.

`import regard` alone imports no torch: what is compared with torch is the import of a public name, in wall time. Help,
version and completion are measured in processor time, user and system together, which is what is promised.
"""

import os
import resource
import subprocess
import sys
from functools import partial

from benchmarks.harness import Row, race, report

LIMIT = 500.0  # ms, for help, version and completion
PROGRAM = "from regard.cli import main; main()"
COMPLETION = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": "regard train --attention ", "COMP_CWORD": "3"}


def load(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def command(*arguments: str, **environment: str) -> None:
    words = [sys.executable, "-c", PROGRAM, *arguments]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=os.environ | environment)


def children() -> float:
    """Seconds of processor time of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    imports = {"ours": partial(load, "from regard import attend"), "torch": partial(load, "import torch")}
    t = race(imports, seconds=20, least=7)
    ours, theirs = t["ours"].median, t["torch"].median
    kept = theirs >= ours / 1.1
    rows = [Row("from regard import attend", "ms", ours, "import torch", theirs, "at least 0.91x", kept)]
    light = {
        "import regard, processor time": partial(load, "import regard"),
        "regard --version, processor time": partial(command, "--version"),
        "regard --help, processor time": partial(command, "--help"),
        "regard train --help, processor time": partial(command, "train", "--help"),
        "regard pretrain --help, processor time": partial(command, "pretrain", "--help"),
        "completion of a value, processor time": partial(command, **COMPLETION),
    }
    for case, timing in race(light, least=7, clock=children).items():
        promise = f"at most {LIMIT:.0f} ms"
        rows.append(Row(case, "ms", timing.median, "promised", LIMIT, promise, timing.median <= LIMIT))
    report("importing", rows)
