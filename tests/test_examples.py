"""Every example runs, and is short enough to read."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from regard.vqa.own import read_own

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


def test_pets_table(tmp_path):
    """On two photographs in the layout of the data."""
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations" / "trimaps").mkdir(parents=True)
    lines = ["#Image CLASS-ID SPECIES BREED ID"]
    for name, breed, species, columns in (("Maine_Coon_1", 1, 1, slice(0, 4)), ("pug_7", 2, 2, slice(2, 20))):
        lines.append(f"{name} {breed} {species} 1")
        Image.new("RGB", (20, 10)).save(tmp_path / "images" / f"{name}.jpg")
        trimap = numpy.full((10, 20), 2, dtype=numpy.uint8)
        trimap[:, columns] = 1
        Image.fromarray(trimap).save(tmp_path / "annotations" / "trimaps" / f"{name}.png")
    lines.append("absent_3 2 2 1")
    (tmp_path / "annotations" / "list.txt").write_text("\n".join(lines))
    assert "8 questions about 2 photographs" in run("pets_table.py", str(tmp_path), str(tmp_path / "questions.csv"))
    answers = [record.answers[0] for record in read_own(tmp_path / "questions.csv", None, tmp_path / "images").records]
    assert answers == ["cat", "maine coon", "left", "less than a quarter", "dog", "pug", "middle", "most of it"]


def test_figures_of_the_thesis(tmp_path):
    out = run("thesis_densities.py", "--out", str(tmp_path)).splitlines()
    run("thesis_transformer.py", "--out", str(tmp_path))
    pictures = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert set(pictures) == {"thesis-2-1.png", "thesis-3-1.png", "thesis-5-1.png", "thesis-family.png"}
    assert all(5_000 < size < 150_000 for size in pictures.values())
    # Var = (3 / 2)^(2 / 3) / 5 for alpha = 2, from equation (5.6); the Gaussian's is one.
    variances = {
        line.split(":")[0]: float(line.split("variance ")[1].split(",")[0]) for line in out if "variance" in line
    }
    assert variances["alpha 1"] == 1
    assert abs(variances["alpha 2"] - 1.5 ** (2 / 3) / 5) < 1e-4
    one, two = (float(line.split("log-likelihood ")[1]) for line in out if "log-likelihood" in line)
    assert two > one + 0.3


def test_video_crossing():
    lines = run("video_crossing.py", "--steps", "2", "--seeds", "1").splitlines()
    assert [line.split(": accuracy ")[0] for line in lines] == ["without a non-local block", "with a non-local block"]
    assert all(0.3 < float(line.split()[-1]) < 0.7 for line in lines)  # two steps teach nothing


def test_clips_show_what_they_are_called():
    """What crosses comes out in its colour; in between nothing is seen."""
    module = runpy.run_path(str(EXAMPLES / "video_crossing.py"))
    torch.manual_seed(0)
    x, crossed = module["clips"](40)
    assert 0 < int(crossed.sum()) < 40
    frames, seen = module["FRAMES"], module["SEEN"]
    for clip, same in zip(x, crossed.tolist(), strict=True):
        before = clip[:, 0, :, :4].amax((-2, -1)).argmax()
        after = clip[:, -1, :, -4:].amax((-2, -1)).argmax()
        assert (before == after) == bool(same)
        assert clip[:, :seen, :, :4].max() > 1.5
        assert clip[:, -seen:, :, -4:].max() > 1.5
        assert clip[:, seen : frames - seen].max() < 1.5  # noise and the wall


def test_kernel_regression(tmp_path):
    lines = run("kernel_regression.py", "--out", str(tmp_path / "picture.png")).splitlines()
    errors = {line.split(":")[0]: float(line.split("error ")[1].split(",")[0]) for line in lines}
    assert set(errors) == {"softmax", "entmax-1.5", "sparsemax"}
    assert max(errors.values()) < 0.2
    wide = {line.split(":")[0]: float(line.split("where keys are sparse ")[1]) for line in lines if "sparse " in line}
    dense = {line.split(":")[0]: float(line.split("dense ")[1].split(",")[0]) for line in lines if "dense " in line}
    assert set(wide) == {"entmax-1.5", "sparsemax"}
    assert all(wide[name] > 1.2 * dense[name] for name in wide)
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_reverse(tmp_path):
    out = run("reverse.py", "--steps", "2", "--out", str(tmp_path / "picture.png"))
    names = [line.split(":")[0] for line in out.splitlines()]
    assert names == ["softmax", "sparsemax"]
    assert "12.0 of 12 read" in out.splitlines()[0]
    assert (tmp_path / "picture.png").stat().st_size > 5000
