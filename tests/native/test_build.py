"""The package without kernels, and its build without a compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.once
def test_without_kernels_everything_works_in_a_process_of_its_own():
    code = (
        "import regard, torch; print(regard.native_kernels()); print(regard.sparsemax(torch.tensor([1.0, 1.4, 0.1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"REGARD_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("off")
    assert "0.3000, 0.7000, 0.0000" in done.stdout


@pytest.mark.once
def test_the_build_process_goes_on_without_a_compiler(tmp_path):
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path),
    ]
    without = {name: value for name, value in os.environ.items() if name != "REGARD_NATIVE"}  # 0 builds nothing
    without |= {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
    done = subprocess.run(command, cwd=root, env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no native kernels" in done.stderr
    assert not list(tmp_path.rglob("*.so"))
