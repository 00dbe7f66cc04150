"""Time of `import regard` against `import torch`, each in fresh processes."""

import subprocess
import sys
from functools import partial

from benchmarks.harness import Row, race, report


def load(package: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {package}"], check=True)


def main() -> None:
    t = race({"ours": partial(load, "regard"), "torch": partial(load, "torch")}, seconds=20, least=7)
    ratio = t["torch"].median / t["ours"].median
    row = Row("import", "ms", t["ours"].median, "import torch", t["torch"].median, "at least 0.91x", ratio >= 1 / 1.1)
    report("importing", [row])
