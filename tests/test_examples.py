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


def test_nonlocal_start():
    lines = run("nonlocal_start.py", "--steps", "1", "--seeds", "1").splitlines()
    assert [line.split(" seed")[0].strip() for line in lines] == ["as published", "wide"]
    started = [float(line.split(": ")[1].split(" positions")[0]) for line in lines]
    assert started[0] > 190
    assert started[1] < 20


def test_continuous_pool(tmp_path):
    out = run("continuous_pool.py", "--steps", "2", "--out", str(tmp_path / "picture.png"))
    assert out.count("accuracy") == 4
    assert (tmp_path / "picture.png").stat().st_size > 5000
