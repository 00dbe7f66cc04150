"""`make test-torch`: tests of the core, the modules and Hugging Face on the oldest, the pinned and the newest torch.

Each runs in an environment of its own under .nox (about 5 GB for a torch with CUDA). `nox -s "tests(torch='2.8.0')"`
runs one; `nox --reuse-existing-virtualenvs` keeps what is installed.
"""

import re
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PINS = (ROOT / "constraints.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

OLDEST = re.search(r"torch>=([\d.]+)", " ".join(PROJECT["dependencies"]))[1]
PINNED = re.search(r"^torch==([\d.]+)", PINS, re.MULTILINE)[1]
#: The newest release that was looked at; any other can be asked for by name.
NEWEST = "2.15.0"

nox.options.reuse_existing_virtualenvs = True


@nox.session
@nox.parametrize("torch", [f"{OLDEST}.0" if OLDEST.count(".") == 1 else OLDEST, PINNED, NEWEST])
def tests(session: nox.Session, torch: str) -> None:
    """Install one torch, the other packages as pinned, and run the tests."""
    others = Path(session.create_tmp()) / "others.txt"
    others.write_text("".join(line for line in PINS.splitlines(True) if not line.startswith("torch==")))
    session.install(f"torch=={torch}", "--constraint", str(others), "--editable", ".[test]")
    session.run("pytest", "@tests/core.txt", "tests/test_hf.py", "tests/test_hf_reach.py", *session.posargs)
