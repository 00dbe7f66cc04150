"""Every example runs, and is short enough to read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_under_eighty_lines(path):
    assert len(path.read_text().splitlines()) < 80


def test_nonlocal_resnet():
    out = run("nonlocal_resnet.py", "--steps", "2")
    assert "inserted resnet.encoder.stages.0.layers.0_nonlocal; the logits are unchanged" in out
    assert "with a non-local block: accuracy" in out


def test_continuous_pool(tmp_path):
    out = run("continuous_pool.py", "--steps", "2", "--out", str(tmp_path / "picture.png"))
    assert out.count("accuracy") == 4
    assert (tmp_path / "picture.png").stat().st_size > 5000
