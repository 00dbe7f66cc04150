"""The runner of other projects' tests counts right, and is not content with a failure that nobody explained."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIM = """
import sys, types

TESTS = ("test_sums.py",)
REASONS = {reasons}


def install():
    sys.modules["sums"] = types.SimpleNamespace(add=lambda a, b: a + b)
"""
TESTED = """
import pytest
from sums import add

def test_right(): assert add(1, 2) == 3
@pytest.mark.parametrize("a", [1, 2])
def test_wrong(a): assert add(a, a) == 3
@pytest.mark.skip
def test_not_here(): pass
"""


@pytest.fixture
def runner(tmp_path):
    """A copy of the runner with one peer, whose reasons the test gives."""
    for name in ("__main__.py", "plugin.py"):
        (tmp_path / "peers").mkdir(exist_ok=True)
        (tmp_path / "peers" / name).write_text((ROOT / "tools" / "peers" / name).read_text())
    (tmp_path / "peers" / "shims").mkdir()
    (tmp_path / "peers" / "shims" / "__init__.py").touch()
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "test_sums.py").write_text(TESTED)

    def run(reasons):
        (tmp_path / "peers" / "shims" / "sums.py").write_text(SHIM.format(reasons=reasons))
        command = [sys.executable, str(tmp_path / "peers"), f"sums={tmp_path / 'checkout'}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.once
def test_counts_and_reasons(runner):
    done = runner({"test_sums::test_wrong*": "Twice a number is even here."})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| sums | not a git checkout | 1 | 1 | 2 |" in done.stdout
    assert "- 2: Twice a number is even here." in done.stdout


@pytest.mark.once
def test_a_failure_without_a_reason_and_a_reason_without_a_failure(runner):
    done = runner({"test_sums::test_wrong[[]1]": "One.", "test_sums::test_right": "Never."})
    assert done.returncode == 1
    assert "test_sums::test_wrong[2] failed, and shims/sums.py has no reason for it" in done.stdout
    assert "no test needs the reason for test_sums::test_right any more" in done.stdout


@pytest.mark.once
def test_every_shim_says_what_it_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "peers"))
    text = (ROOT / "docs" / "compatibility.md").read_text()
    for path in sorted((ROOT / "tools" / "peers" / "shims").glob("[a-z]*.py")):
        namespace = {}
        exec(compile(path.read_text(), str(path), "exec"), namespace | {"__name__": path.stem}, namespace)
        assert namespace["TESTS"], path
        assert all(reason.endswith(".") for reason in namespace["REASONS"].values()), path
        assert f"{path.stem}=" in text, f"docs/compatibility.md does not say how to run {path.stem}"
