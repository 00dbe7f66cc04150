"""Does pretraining help? The model of `regard demo` on one backbone, pretrained, untrained or trained end to end.

    python -m benchmarks.swav_pays out/demo [untrained] [end-to-end]

Reads the scenes and the first discrete model of `regard demo`, which uses a frozen SwAV backbone; trains the same model
for as many epochs on the same backbone untrained and frozen (its norms calibrated on the pictures), and on one that is
trained end to end from its initial weights; and prints the accuracies on new scenes. Finished runs are not repeated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from regard.backbones import Backbone, load_backbone, make_backbone, save_backbone
from regard.swav._evaluate import calibrated
from regard.training import Running, latest
from regard.vqa.evaluate import evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.pixels import PixelStore
from regard.vqa.read import read_questions
from regard.vqa.settings import TrainSettings, settings_of
from regard.vqa.store import load_run
from regard.vqa.train import train

KIND = "discrete-softmax"


def main(demo: Path, forms: list[str]) -> None:
    """Train the named forms, and print a row for each finished one."""
    torch.set_num_threads(1)
    config = json.loads((demo / "models" / f"{KIND}-0" / "config.json").read_text())
    settings = settings_of(config)
    folder = demo / "pays"
    for form in forms:
        {"untrained": _untrained, "end-to-end": _end_to_end}[form](demo, folder / form, settings)
    for form, run in (
        ("SwAV, frozen", demo / "models" / f"{KIND}-0"),
        ("untrained, frozen", folder / "untrained" / "run"),
        ("trained end to end", folder / "end-to-end" / "run"),
    ):
        if _finished(run):
            print(f"{form:20} {_accuracy(demo, run):5.1f} %", flush=True)


def _finished(run: Path) -> bool:
    checkpoint = latest(run)
    return (
        checkpoint is not None and checkpoint.step == int((run / "steps").read_text()) and (run / "backbone").is_dir()
    )


def _fresh(demo: Path) -> Backbone:
    """The backbone of `regard demo` with its initial weights."""
    config = json.loads((demo / "swav" / "backbone" / "config.json").read_text())
    torch.manual_seed(0)
    return make_backbone("small", size=config["preparation"]["size"], **config["options"])


def _untrained(demo: Path, out: Path, settings: TrainSettings) -> None:
    records = read_questions(demo / "scenes", "train")
    if not (out / "backbone" / "config.json").is_file():
        sample = PixelStore(records.pictures, _fresh(demo), "fresh")[list(records.pictures)[:2560]]
        save_backbone(calibrated(_fresh(demo), sample), out / "backbone")
    pictures = records.pictures | read_questions(demo / "scenes", "test").pictures
    store, _ = make_features(
        out / "features", pictures, load_backbone(out / "backbone"), name=str(out / "backbone"), stages=True
    )
    train(out / "run", records, store, settings, running=Running(log_every=100))


def _end_to_end(demo: Path, out: Path, settings: TrainSettings) -> None:
    records = read_questions(demo / "scenes", "train")
    store = PixelStore(records.pictures, _fresh(demo), "fresh")
    train(out / "run", records, store, settings, running=Running(log_every=100))


def _accuracy(demo: Path, folder: Path) -> float:
    run, records = load_run(folder), read_questions(demo / "scenes", "test")
    if run.config["backbone"].get("end_to_end"):
        store, _ = make_features(folder.parent / "features", records.pictures, run.load_backbone(), name=str(folder))
    else:
        store = FeatureStore.open(json.loads((folder / "features.json").read_text())["folder"])
    known = Examples(records, store, run.words, run.answers, run.model.settings.tokens)
    return evaluate_model(run.model, known, run.answers).accuracy.overall


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["untrained", "end-to-end"])
