"""Does any preset collapse? Each is trained briefly, on pictures that need no download.

    python -m benchmarks.swav_presets [NAME ...]

`digits` learns from scikit-learn's digits. `scenes` learns from drawn scenes and is evaluated on objects cropped from
others (label: shape). `small` learns from tiles of 32 pixels of scikit-learn's two photographs (label: which one).
`photos` is meant for GPUs: here it has a tenth of its prototypes and queue, a small backbone and views of 32 and 14
pixels; codes, loss, optimiser and number of views are the preset's.
"""

from __future__ import annotations

import csv
import json
import math
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.swav_peer import RESULTS, save
from regard.pictures import Arrays
from regard.scenes import SHAPES, Scenes
from regard.swav import CollapseWarning, digits, evaluate_backbone, run
from regard.training import Running

TENTH = {
    "backbone": "small",
    "backbone_options": {"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
    "size": 32,
    "local_size": 14,
    "canvas": 48,
    "hidden": 256,
    "prototypes": 300,
    "queue": 384,
    "queue_epoch": 0,
    "freeze": 30,
    "batch_size": 64,
    "steps": 100,
}
CHANGES = {
    "digits": {},
    "small": {"steps": 150, "batch_size": 64, "freeze": 30},
    "scenes": {"steps": 300},
    "photos": TENTH,
}


def tiles(side):
    """Training and test tiles of two photographs, overlapping by half; the lower quarter of each is for testing."""
    from sklearn.datasets import load_sample_images

    parts = [], []
    for label, image in enumerate(load_sample_images().images):
        photo = torch.from_numpy(image.copy()).permute(2, 0, 1)
        cut = photo.shape[1] * 3 // 4
        for place, half in enumerate((photo[:, :cut], photo[:, cut:])):
            windows = half.unfold(1, side, side // 2).unfold(2, side, side // 2)
            cut_out = windows.permute(1, 2, 0, 3, 4).reshape(-1, 3, side, side)
            parts[place].append((cut_out, [label] * len(cut_out)))
    return tuple(Arrays(torch.cat([p for p, _ in part]), [n for _, m in part for n in m]) for part in parts)


def objects(split, count, side=28):
    """Windows around the objects of scenes, with their shapes."""
    scenes, windows, labels = Scenes(split, count), [], []
    for number in range(count):
        picture = scenes.picture(number)
        for thing in scenes.scene(number).things:
            top, left = (
                min(max(round(at * scenes.size) - side // 2, 0), scenes.size - side) for at in (thing.y, thing.x)
            )
            windows.append(picture[:, top : top + side, left : left + side])
            labels.append(SHAPES.index(thing.shape))
    return Arrays(torch.stack(windows), labels)


def pictures(name):
    """Pictures for pretraining, for fitting k-NN and probe, and for testing them."""
    if name == "scenes":
        return Arrays(Scenes("train", 1000).pictures), objects("val", 400), objects("test", 200)
    learn, test = digits() if name == "digits" else tiles(32 if name == "small" else 48)
    return learn, learn, test


def one(name):
    learn, fit, test = pictures(name)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CollapseWarning)
        pretrained = run(learn, out=out, preset_name=name, running=Running(progress=False), **CHANGES[name])
        rows = list(csv.DictReader((Path(out) / "log.csv").read_text().splitlines()))
        last = {key: float(value) for key, value in rows[-1].items()}
    settings, backbone = pretrained.task.settings, pretrained.task.backbone
    backbone.preparation = replace(backbone.preparation, size=settings.crops.size)
    evaluation = evaluate_backbone(backbone, fit, test, most=2000)
    return {
        "preset": name,
        "steps": settings.steps,
        "loss": last["loss"],
        "ln_prototypes": math.log(settings.prototypes),
        "used": last["used"],
        "share_least": last["share_least"],
        "share_most": last["share_most"],
        "rank": last["rank"],
        "dim": settings.dim,
        "untrained_knn": evaluation.untrained_knn.share,
        "knn": evaluation.knn.share,
        "untrained_probe": evaluation.untrained_probe.share,
        "probe": evaluation.probe.share,
        "warnings": [str(w.message) for w in caught if issubclass(w.category, CollapseWarning)],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main(names=tuple(CHANGES)):
    path = RESULTS / "swav_presets.json"
    rows = {row["preset"]: row for row in json.loads(path.read_text())["rows"]} if path.is_file() else {}
    print("preset  steps  loss (ln K)  prototypes used, shares x K  rank  k-NN before, after  probe before, after")
    for name in names:
        row = rows[name] = one(name)
        print(
            f"{name:<7}{row['steps']:>6}  {row['loss']:.2f} ({row['ln_prototypes']:.2f})  {row['used']:>8.0%}, "
            f"{row['share_least']:.2f} to {row['share_most']:.2f}{row['rank']:>10.1f} of {row['dim']}"
            f"{row['untrained_knn']:>9.1%}, {row['knn']:.1%}{row['untrained_probe']:>12.1%}, {row['probe']:.1%}",
            *row["warnings"],
            sep="\n    ",
            flush=True,
        )
        save("swav_presets", {"rows": list(rows.values())})


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(CHANGES))
