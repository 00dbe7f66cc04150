"""docs/architecture.md is what happens: its lists of files, against those that three calls really enter."""

import importlib
import inspect
import re
import sys
import threading
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

import regard
from regard import native
from regard.backbones import make_backbone
from regard.cli import main
from regard.explore._app import create_app
from regard.scenes import Scenes, write_scenes
from regard.vqa.features import make_features
from regard.vqa.predict import Predictor
from regard.vqa.read import read_questions

SOURCE = Path(regard.__file__).parent
PAGE = (SOURCE.parent.parent / "docs/architecture.md").read_text()


def walks(title):
    """The numbered lists under a heading, as paths."""
    section = PAGE.split(f"### {title}")[1].split("\n## ")[0].split("\n### ")[0]
    lists, numbered = [], re.compile(r"^(\d+)\. `([\w/]+\.py)`", re.MULTILINE)
    for number, path in numbered.findall(section):
        if number == "1":
            lists.append([])
        lists[-1].append(path)
    return lists


def entered(call):
    """The files of the package that a call enters, in the order of their first entry, in all threads."""
    paths = {}

    def look(frame, event, _):
        name = frame.f_code.co_filename
        function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # neither a module nor the body of a class
        if event == "call" and function and name.startswith(str(SOURCE)):
            paths.setdefault(Path(name).relative_to(SOURCE).as_posix())

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return list(paths)


def follows(walk, call):
    paths = entered(call)
    assert "\n".join(path for path in paths if path in walk) == "\n".join(walk)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("walk")
    pictures = {}
    for split in ("train", "val"):
        write_scenes(Scenes(split, 8, size=32), place / "scenes")
        pictures |= read_questions(place / "scenes", split).pictures
    backbone = make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2)
    make_features(place / "features", pictures, backbone, name="small")
    backbone.save_pretrained(place / "backbone")
    return place


def test_every_path_is_there():
    table = PAGE.replace("NAME", "*")
    for path in set(re.findall(r"`((?:\w+/)+\w+\.(?:py|cpp))`", table)):
        assert (SOURCE / path).is_file() or (SOURCE.parent.parent / path).is_file(), path
    packages = {path.stem for path in SOURCE.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
    drawn = set(re.findall(r"\w+", PAGE.split("```text")[1].split("```")[0]))
    assert {name for name in packages if not name.startswith("_")} <= drawn


@pytest.mark.skipif(native.library() is None, reason="the sparse algorithm is a kernel's")
def test_attend():
    forward, backward = walks("`attend(")
    q = torch.randn(1, 2, 1024, 16, requires_grad=True)
    contexts, attend, sparsemax = [], regard.attend, regard.sparsemax  # imported at this first use
    follows(forward, lambda: contexts.append(attend(q, q, q, map=sparsemax)))
    follows(backward, lambda: contexts[0].sum().backward())


def test_train_and_a_question_on_the_page(place, monkeypatch):
    (training,), (asking,) = walks("`regard train`"), walks("A question on the page")
    options = ["--preset", "small", "--epochs", "1", "--above", "0", "--validation", "val"]
    features, out = ["--features", str(place / "features")], ["--out", str(place / "run")]
    monkeypatch.setattr(sys, "argv", ["regard", "train", str(place / "scenes"), *features, *out, *options])
    for module in ("cli.train", "vqa.train", "training._loop"):  # what runs while they are imported does not count
        importlib.import_module(f"regard.{module}")

    def train():
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code

    follows(training, train)
    (place / "backbone").rename(place / "run" / "backbone")
    page = create_app(Predictor.load(place / "run"))
    picture = next((place / "scenes").rglob("*.png")).read_bytes()
    form = {
        "question": (None, "What colour is the circle?"),
        "attention": (None, "continuous-softmax"),
        "picture": ("scene.png", picture, "image/png"),
    }

    def ask():
        with TestClient(page) as client:
            assert client.post("/api/ask", files=form).status_code == 200

    follows(asking, ask)
