"""One table: SwAV, DeepCluster-v2 and SeLa-v2, with small crops and without at equal cost, by five evaluations.

    python -m benchmarks.swav_table digits                # scikit-learn's digits, nothing to download
    python -m benchmarks.swav_table cifar FOLDER [STEPS]  # FOLDER: train/CLASS/*.jpg, test/CLASS/*.jpg
    python -m benchmarks.swav_table print digits          # the table of the recorded results

Rows: the backbone of each method pretrained with and without small crops, and untrained. Columns: 10 nearest
neighbours, the fast linear probe (logistic regression), and by `regard finetune` a linear layer on the frozen backbone,
and the whole network on 1 %, on 10 % and on all labels. Equal cost: as many pixels go through the backbone in training
with small crops as without, so that a run with them has fewer steps. The file of results is rewritten after every
number; rerun to resume.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch

from benchmarks.swav_peer import RESULTS, save
from regard.backbones import load_backbone, save_backbone
from regard.pictures import Arrays, open_pictures, square
from regard.swav import digits, finetune, knn, pooled_features, preset, probe, run
from regard.swav._evaluate import calibrated
from regard.swav._pretrain import build
from regard.training import Running

METHODS = {"SwAV": "sinkhorn", "DeepCluster-v2": "kmeans", "SeLa-v2": "sela"}
COLUMNS = {
    "10-NN": None,
    "probe": None,
    "linear": ("linear", {}),
    "1 %": ("1-percent", {"lr_head": 0.5}),
    "10 %": ("10-percent", {}),
    "all": ("whole", {}),
}
SETS = {
    "digits": {"preset": "digits", "steps": 200, "learn": 1297, "flip": 0.0, "scale": (0.5, 1.0), "epochs": 10},
    "cifar": {"preset": "small", "steps": 1200, "learn": 5000, "flip": 0.5, "scale": (0.2, 1.0), "epochs": 10},
}
QUIET = Running(progress=False, log="none", checkpoint_every=10_000)
RUNS = Path("out/swav_table")


def cifar(folder):
    """CIFAR-10 as pictures in folders of classes, or as benchmarks/swav_cifar.py takes it."""
    folder = Path(folder)
    if not (folder / "train").is_dir():
        from benchmarks.swav_cifar import cifar10

        return cifar10(folder)
    sources = [open_pictures(folder / name) for name in ("train", "test")]
    return [Arrays(torch.stack([square(s[i], 32) for i in range(len(s))]), s.labels, s.classes) for s in sources]


def first_of(pictures, count, seed=0):
    """The first `count` of the pictures in random order."""
    chosen = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))[:count]
    labels = [pictures.labels[i] for i in chosen.tolist()]
    return Arrays(pictures.pictures[chosen], labels, pictures.classes)


def equal_steps(settings, steps):
    """Steps with small crops that cost as many pixels as `steps` without."""
    crops = settings.crops
    large, small = 2 * crops.size**2, crops.local * crops.local_size**2
    return round(steps * large / (large + small))


def table(name, source=None, steps=None):
    """Every number of the table that is not recorded yet."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    about = SETS[name] | ({} if steps is None else {"steps": int(steps)})
    learn, test = digits() if name == "digits" else cifar(source)
    labelled = first_of(learn, about["learn"])
    test = first_of(test, 2000)
    path = RESULTS / f"swav_table_{name}.json"
    result = json.loads(path.read_text()) if path.is_file() else {}
    if result.get("settings") != json.loads(json.dumps(about)):
        result = {"settings": about, "pictures": len(learn), "labelled": len(labelled), "test": len(test), "rows": {}}
    for row, backbone in backbones(name, about, learn, labelled):
        numbers = result["rows"].setdefault(row, {})
        for column in COLUMNS:
            if column not in numbers:
                numbers[column] = accuracy(backbone(), column, labelled, test, about, RUNS / name / row)
                print(f"{row}, {column}: {100 * numbers[column]:.1f} %", flush=True)
                save(f"swav_table_{name}", result)
    show(name)


def backbones(name, about, learn, labelled):
    """Names of rows, and functions that return the backbone of each, pretrained at the first call."""
    for method, codes in METHODS.items():
        for local in (True, False):
            yield (
                f"{method}{', small crops' if local else ''}",
                lambda c=codes, w=local: pretrained(name, about, learn, c, w),
            )
    yield "untrained", lambda: untrained(about, labelled)


def pretrained(name, about, learn, codes, local):
    """The backbone of a method; a finished run is not repeated."""
    settings = preset(about["preset"], codes=codes, batch_size=64)
    steps = equal_steps(settings, about["steps"]) if local else about["steps"]
    changes = {} if local else {"local": 0}
    out = RUNS / name / f"{codes}-{'local' if local else 'plain'}-{about['steps']}"
    running = Running(progress=False, checkpoint_every=100)
    return load_backbone(run(learn, out=out, settings=settings, running=running, steps=steps, **changes).backbone)


def untrained(about, labelled):
    """The backbone with its initial weights, norms calibrated."""
    return calibrated(build(preset(about["preset"])).backbone, labelled.pictures)


def accuracy(backbone, column, labelled, test, about, place):
    """One number of the table."""
    y, y_test = torch.tensor(labelled.labels), torch.tensor(test.labels)
    if COLUMNS[column] is None:
        features = [pooled_features(backbone, source.pictures) for source in (labelled, test)]
        return (knn if column == "10-NN" else probe)(features[0], y, features[1], y_test).share
    kind, changes = COLUMNS[column]
    changes = {"epochs": about["epochs"], "flip": about["flip"], "scale": about["scale"], "batch_size": 64} | changes
    place = place / column.replace(" ", "")
    save_backbone(backbone, place / "start")
    return finetune(
        load_backbone(place / "start"), labelled, test=test, out=place / "run", preset=kind, running=QUIET, **changes
    ).accuracy.share


def show(name):
    """Print the table as Markdown."""
    result = json.loads((RESULTS / f"swav_table_{name}.json").read_text())
    print(f"| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for row, numbers in result["rows"].items():
        cells = (f"{100 * numbers[column]:.1f} %" if column in numbers else "" for column in COLUMNS)
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["print"]:
        show(sys.argv[2])
    else:
        table(*sys.argv[1:])
