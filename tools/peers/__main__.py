"""Run other projects' own tests against regard: `python tools/peers entmax=CHECKOUT pot=CHECKOUT ... [--write]`.

Each peer has a file in shims/ that puts regard's functions under the peer's names. A test that does not pass needs a
reason there, or the command ends with an error; so does a reason that no test needs any more. With `--write` the
counts go into docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "compatibility.md"
START, END = "<!-- counts: python tools/peers --write -->", "<!-- end of counts -->"


@dataclass(frozen=True)
class Result:
    """What became of the tests of one peer: counts, and the names of those that did not pass, by reason."""

    peer: str
    version: str
    passed: int
    skipped: int
    reasons: Counter[str]
    unexplained: list[str]
    unused: list[str]

    def row(self) -> str:
        """A line of the table."""
        return f"| {self.peer} | {self.version} | {self.passed} | {self.skipped} | {sum(self.reasons.values())} |"


def version_of(checkout: Path) -> str:
    """The commit of a checkout, short."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "not a git checkout"


def run(peer: str, checkout: Path) -> Result:
    """Run the tests that the shim names, in a process of their own, and sort what they did."""
    shim = importlib.import_module(f"shims.{peer}")
    with tempfile.TemporaryDirectory() as folder:
        settings, report = Path(folder) / "pytest.ini", Path(folder) / "report.xml"
        settings.write_text("[pytest]\n")  # the peer's own options may ask for plugins that are not here
        command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-c", str(settings)]
        command += [f"--rootdir={checkout}", f"--junitxml={report}", *shim.TESTS]
        path = os.pathsep.join(x for x in (str(HERE), os.environ.get("PYTHONPATH", "")) if x)
        environment = os.environ | {"PYTHONPATH": path, "REGARD_PEER": peer, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if not report.exists():
            sys.exit(f"{peer}: pytest did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    if not cases:
        sys.exit(f"{peer}: no tests found\n{done.stdout[-2000:]}")
    return sort(peer, version_of(checkout), cases, shim.REASONS)


def sort(peer: str, version: str, cases: list[ElementTree.Element], known: dict[str, str]) -> Result:
    """Count, and give each test that did not pass the first reason whose pattern fits its name."""
    passed = skipped = 0
    reasons: Counter[str] = Counter()
    unexplained, used = [], set()
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is None and case.find("error") is None:
            is_skipped = case.find("skipped") is not None
            passed, skipped = passed + (not is_skipped), skipped + is_skipped
            continue
        pattern = next((pattern for pattern in known if fnmatch(name, pattern)), None)
        if pattern is None:
            unexplained.append(name)
        else:
            used.add(pattern)
            reasons[known[pattern]] += 1
    unused = [pattern for pattern in known if pattern not in used]
    return Result(peer, version, passed, skipped, reasons, unexplained, unused)


def page(results: list[Result]) -> str:
    """The counts as a table, and the reasons under it."""
    lines = ["| suite | commit | passed | skipped by itself | does not pass |", "|---|---|---|---|---|"]
    lines += [result.row() for result in results]
    for result in results:
        if result.reasons:
            lines += ["", f"What does not pass of {result.peer}, and why:", ""]
            lines += [f"- {count}: {reason}" for reason, count in result.reasons.most_common()]
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for, print the table, and end with an error if a test failed without a reason."""
    parser = argparse.ArgumentParser(prog="tools/peers", description=(__doc__ or "").split("\n")[0])
    names = sorted(path.stem for path in (HERE / "shims").glob("[a-z]*.py"))
    parser.add_argument("peers", nargs="+", metavar="NAME=CHECKOUT", help=f"names: {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="write the counts to docs/compatibility.md (default: off)")
    given = parser.parse_args()
    results = []
    for peer in given.peers:
        name, _, checkout = peer.partition("=")
        if name not in names or not Path(checkout).is_dir():
            parser.error(f"{peer}: expected NAME=CHECKOUT, a name of {', '.join(names)} and a folder that exists")
        results.append(run(name, Path(checkout).resolve()))
        print(results[-1].row(), flush=True)
    counts = page(results)
    print(f"\n{counts}")
    for result in results:
        for name in result.unexplained:
            print(f"{result.peer}: {name} failed, and shims/{result.peer}.py has no reason for it")
        for pattern in result.unused:
            print(f"{result.peer}: no test needs the reason for {pattern} any more")
    if any(result.unexplained or result.unused for result in results):
        sys.exit(1)
    if given.write:
        text = PAGE.read_text()
        around = re.compile(f"{re.escape(START)}.*{re.escape(END)}", re.DOTALL)
        PAGE.write_text(around.sub(lambda _: f"{START}\n\n{counts}\n\n{END}", text))


if __name__ == "__main__":
    main()
