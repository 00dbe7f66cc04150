"""Long commands, killed and rerun: the same bytes as undisturbed. A few moments here; `tools/kills.py` tries many."""

import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("looks at processes in /proc", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import kills


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return kills.Bench(tmp_path_factory.mktemp("kills"))


@pytest.mark.once
@pytest.mark.parametrize("name", ["features", "patience", "vqa", "compare"])
def test_killed_at_random_and_rerun(bench, name, capsys):
    assert kills.tried(bench, name, moments=2, seed=1), capsys.readouterr().out


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
