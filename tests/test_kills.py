"""Long commands, killed and rerun: the same bytes as undisturbed. A few moments here; `tools/kills.py` tries many."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import kills

if sys.platform != "linux":
    pytest.skip("looks at processes in /proc", allow_module_level=True)

TOOL = Path(__file__).parents[1] / "tools" / "kills.py"


@pytest.mark.once
def test_killed_at_random_and_rerun():
    """In a process of its own, without threads, as its commands are forked."""
    names = ["features", "patience", "vqa", "compare"]
    done = subprocess.run([sys.executable, TOOL, *names, "--moments=2", "--seed=1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(" | ")[:3] for line in done.stdout.splitlines()[2:]] == [[f"| {n}", "2", "0"] for n in names]


def test_a_tool_that_sees_differences(tmp_path):
    """It would be worthless if every result were the same to it."""
    for name, loss, speed in (("a", 0.5, 10), ("b", 0.5, 20), ("c", 0.25, 10)):
        (tmp_path / name / "checkpoints" / "step-2").mkdir(parents=True)
        (tmp_path / name / "log.csv").write_text(f"step,loss,samples_per_second\n1,{loss},{speed}\n")
        (tmp_path / name / "checkpoints" / "step-2" / "model.safetensors").write_bytes(b"weights")
    a, b, c = (kills.result(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c
    (tmp_path / "b" / "checkpoints" / "step-2" / "model.safetensors").write_bytes(b"others")
    assert kills.result(tmp_path / "b") != a
