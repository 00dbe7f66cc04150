"""The page and the command line say the same: one prediction, one JSON."""

import gc
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fastapi.testclient import TestClient

from regard.backbones import load_backbone, make_backbone, save_backbone
from regard.explore import Limits
from regard.explore._serve import explore_app
from regard.report import Entry, write_report
from regard.scenes import Scenes, write_scenes
from regard.training import Running
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.mcan import MCAN
from regard.vqa.predict import Predictor
from regard.vqa.read import read_questions
from regard.vqa.settings import small, small_training
from regard.vqa.train import train

QUESTION = "What colour is the large ring?"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model that was hardly trained, on few pictures."""
    folder = tmp_path_factory.mktemp("vqa")
    write_scenes(Scenes("train", 24, size=32), folder / "scenes")
    torch.manual_seed(0)
    save_backbone(make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2), folder / "backbone")
    records, kept = read_questions(folder / "scenes", "train"), folder / "features"
    make_features(kept, records.pictures, load_backbone(folder / "backbone"), name=str(folder / "backbone"))
    sizes = small(width=16, heads=2, layers=1, feed_forward=32, flat=16, fused=24, words=8)
    settings = small_training(model=sizes, epochs=1, batch=32, above=2)
    train(folder / "run", records, FeatureStore.open(kept), settings, running=Running(progress=False))
    return folder / "run"


def without_time(told):
    return {name: value for name, value in told.items() if name != "seconds"}


@pytest.mark.parametrize("attention", ["continuous-sparsemax", "mixture-selected"])
def test_the_page_says_what_the_command_line_prints(checkpoint, tmp_path, attention):
    client = TestClient(explore_app(checkpoint, "127.0.0.1"), base_url="http://127.0.0.1")
    picture = tmp_path / "scene.png"
    picture.write_bytes(client.get("/api/samples/scene-1").content)
    command = [
        sys.executable,
        "-c",
        "from regard.cli import main; main()",
        "ask",
        str(checkpoint),
        str(picture),
        QUESTION,
    ]
    printed = subprocess.run([*command, "--attention", attention, "--json"], capture_output=True, text=True, check=True)
    asked = {"question": QUESTION, "attention": attention}
    chosen = client.post("/api/ask", data=asked | {"sample": "scene-1"}, files={"none": (None, "")})
    sent = client.post("/api/ask", data=asked, files={"picture": ("scene.png", picture.read_bytes())})
    wanted = without_time(json.loads(printed.stdout))
    assert without_time(chosen.json()) == without_time(sent.json()) == wanted
    assert wanted["attention"] == attention


def test_the_page_holds_one_model_for_all_its_threads(checkpoint):
    def models():
        gc.collect()
        return [x for x in gc.get_objects() if type(x) is MCAN]

    before = len(models())
    app = explore_app(checkpoint, "127.0.0.1", Limits(workers=4))
    assert len(models()) - before == 1
    client = TestClient(app, base_url="http://127.0.0.1")
    names = client.get("/api/state").json()["model"]["attentions"][:8]

    def answer(name):
        asked = {"question": QUESTION, "attention": name, "sample": "scene-1"}
        return without_time(client.post("/api/ask", data=asked, files={"none": (None, "")}).json())

    alone = {name: answer(name) for name in names}
    assert [told["attention"] for told in alone.values()] == names
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(answer, names * 3)) == list(alone.values()) * 3
    assert len(models()) - before == 1


def test_every_attention_is_asked_and_reported(checkpoint, tmp_path):
    predictor = Predictor.load(checkpoint)
    picture = Scenes("test", 1).picture(0)
    predictions = [predictor.ask(picture, QUESTION, kind) for kind in predictor.attentions]
    for name in ("report.html", "report.png", "report.json"):
        write_report(tmp_path / name, [Entry(picture, QUESTION, predictions)])
    told = json.loads((tmp_path / "report.json").read_text())["entries"][0]["predictions"]
    assert [p["attention"] for p in told] == list(predictor.attentions)
    assert all(kind in (tmp_path / "report.html").read_text() for kind in predictor.attentions)
