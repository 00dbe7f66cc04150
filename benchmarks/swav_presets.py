"""Does any preset collapse? Each is trained for a short while on pictures that need no download.

    python -m benchmarks.swav_presets [NAME ...]

`digits` learns from scikit-learn's digits and `scenes` from drawn scenes (label: colour of the largest object), both
as they are. `small` learns from tiles of 32 pixels of scikit-learn's two photographs (label: which one). `photos` is
made for GPUs: here it has a tenth of its prototypes and queue, a small backbone and views of 32 and 14 pixels; codes,
loss, optimiser and number of views are its own.
"""

from __future__ import annotations

import csv
import math
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from benchmarks.swav_peer import save
from regard.pictures import Arrays
from regard.scenes import COLOURS, Scenes
from regard.swav import PRESETS, CollapseWarning, digits, evaluate, run

TENTH = {
    "backbone": "small",
    "backbone_options": {"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
    "size": 32,
    "local_size": 14,
    "canvas": 48,
    "hidden": 256,
    "prototypes": 300,
    "queue": 384,
    "freeze": 30,
    "batch_size": 64,
    "steps": 120,
}
CHANGES = {
    "digits": {},
    "small": {"steps": 200, "batch_size": 64, "freeze": 30},
    "scenes": {"steps": 300},
    "photos": TENTH,
}


def tiles(side):
    """Tiles of two photographs, half overlapping; the lower quarter of each photograph is for testing."""
    from sklearn.datasets import load_sample_images

    parts = [], []
    for label, image in enumerate(load_sample_images().images):
        photo = torch.from_numpy(image.copy()).permute(2, 0, 1)
        cut = photo.shape[1] * 3 // 4
        for place, half in enumerate((photo[:, :cut], photo[:, cut:])):
            windows = half.unfold(1, side, side // 2).unfold(2, side, side // 2)
            made = windows.permute(1, 2, 0, 3, 4).reshape(-1, 3, side, side)
            parts[place].append((made, [label] * len(made)))
    return tuple(Arrays(torch.cat([p for p, _ in part]), [n for _, m in part for n in m]) for part in parts)


def drawn(split, count):
    scenes = Scenes(split, count)
    largest = [max(scenes.scene(i).things, key=lambda thing: thing.radius) for i in range(count)]
    return Arrays(scenes.pictures, [list(COLOURS).index(thing.colour) for thing in largest])


def pictures(name):
    if name == "digits":
        return digits()
    return (drawn("train", 1000), drawn("test", 300)) if name == "scenes" else tiles(32 if name == "small" else 48)


def one(name):
    learn, test = pictures(name)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", CollapseWarning)
        made = run(learn, out=out, preset_name=name, progress=False, **CHANGES[name])
        rows = list(csv.DictReader((Path(out) / "log.csv").read_text().splitlines()))
        seen = {key: float(value) for key, value in rows[-1].items()}
    judged = evaluate(made.task.backbone, learn, test, most=2000)
    settings = made.task.settings
    return {
        "preset": name,
        "steps": settings.steps,
        "loss": seen["loss"],
        "ln_prototypes": math.log(settings.prototypes),
        "used": seen["used"],
        "share_least": seen["share_least"],
        "share_most": seen["share_most"],
        "rank": seen["rank"],
        "dim": settings.dim,
        "untrained_knn": judged.untrained_knn.share,
        "knn": judged.knn.share,
        "untrained_probe": judged.untrained_probe.share,
        "probe": judged.probe.share,
        "warnings": [str(w.message) for w in said if issubclass(w.category, CollapseWarning)],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main(names=tuple(PRESETS)):
    rows = []
    print("preset  steps  loss (ln K)  prototypes used, shares x K  rank  k-NN before, after  probe before, after")
    for name in names:
        row = one(name)
        rows.append(row)
        print(
            f"{name:<7}{row['steps']:>6}  {row['loss']:.2f} ({row['ln_prototypes']:.2f})  {row['used']:>8.0%}, "
            f"{row['share_least']:.2f} to {row['share_most']:.2f}{row['rank']:>10.1f} of {row['dim']}"
            f"{row['untrained_knn']:>9.1%}, {row['knn']:.1%}{row['untrained_probe']:>12.1%}, {row['probe']:.1%}",
            *row["warnings"],
            sep="\n    ",
            flush=True,
        )
        save("swav_presets", {"rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(PRESETS))
