"""The maps on a photograph: it runs, writes a picture, and its figures say what the maps promise."""

import subprocess
import sys

import pytest
import torch
from PIL import Image

from regard.patches import COLUMNS, ROWS, draw_maps, weigh


def test_weights_are_what_the_maps_promise():
    torch.manual_seed(0)
    shown = {m.name: m for m in weigh(torch.rand(3, 300, 450))}
    for m in shown.values():
        assert m.weights.shape == (ROWS, COLUMNS)
        assert float(m.weights.sum()) == pytest.approx(1, abs=1e-5)
    assert shown["softmax"].support == 1
    assert shown["sparsemax"].support < shown["entmax 1.5"].support < 1
    assert shown["TVmax 0.2"].variation < shown["TVmax 0.05"].variation < shown["sparsemax"].variation


def test_writes_a_picture(tmp_path):
    result = draw_maps(tmp_path / "new folder" / "maps.png")
    with Image.open(result.picture) as picture:
        assert picture.width == 2 * picture.height
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 1000
    assert [p.name for p in result.picture.parent.iterdir()] == ["maps.png"]
    assert result.table().count("\n") == 5


def test_command_line(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-c", "from regard.cli import main; main()", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("maps", "--out", str(tmp_path / "maps.png"))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "maps.png") in done.stdout
    assert "sparsemax" in done.stdout
    (tmp_path / "file").touch()
    failed = run("maps", "--out", str(tmp_path / "file" / "maps.png"))
    assert failed.returncode == 1
    assert failed.stderr.startswith("regard: cannot write")
    assert "Traceback" not in failed.stderr
    assert "demo" in run("--help").stdout
