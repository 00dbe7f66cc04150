"""Prototypes frozen or trained, with and without small crops, on the scenes of `regard demo`.

    python -m benchmarks.swav_scenes [VARIANT ...]        # default: all; results as JSON
    python -m benchmarks.swav_scenes print                # the table of the recorded results

Each variant pretrains the backbone of the demonstration on its 10,000 scenes. Then the features at the centre of each
object, of the last stage and of all stages together, are classified by a linear probe: by shape and by colour, learned
from 600 new scenes and tested on 400 others.
"""

from __future__ import annotations

import csv
import json
import sys
import time
import warnings
from pathlib import Path

import torch

from benchmarks.swav_peer import RESULTS, save
from regard.pictures import Arrays
from regard.scenes import COLOURS, SHAPES, Scenes
from regard.swav import knn, probe, run
from regard.training import Running

SMALL = {"local": 2, "local_size": 14, "local_scale": (0.2, 0.5)}
VARIANTS = {
    "frozen": {"freeze": 1_000_000, "local": 0, "steps": 400},
    "trained": {"freeze": 100, "local": 0, "steps": 400},
    "trained, small crops": {"freeze": 100, "steps": 320, **SMALL},
    "trained, larger small crops": {"freeze": 100, "steps": 320, **SMALL, "local_scale": (0.4, 0.8)},
    "never frozen": {"freeze": 0, "local": 0, "steps": 400},
}
RUNS = Path("out/swav_scenes")


def at_objects(backbone, split, count):
    """Features at the centres of objects, (N, D) of the last stage and of all stages; their shapes and colours."""
    scenes, last, every, shapes, colours = Scenes(split, count), [], [], [], []
    for start in range(0, count, 100):
        batch = torch.stack([scenes.picture(i) for i in range(start, start + 100)])
        with torch.no_grad():
            maps = backbone.stages(backbone.prepare(batch))
        for number in range(100):
            for thing in scenes.scene(start + number).things:
                cells = [m[number, :, _cell(thing.y, m.shape[-2]), _cell(thing.x, m.shape[-1])] for m in maps]
                last.append(cells[-1])
                every.append(torch.cat(cells))
                shapes.append(SHAPES.index(thing.shape))
                colours.append(list(COLOURS).index(thing.colour))
    return torch.stack(last), torch.stack(every), torch.tensor(shapes), torch.tensor(colours)


def _cell(at, cells):
    return min(int(at * cells), cells - 1)


def one(name, pictures):
    """Pretrain a variant, and return the numbers of its row."""
    began = time.perf_counter()
    out = RUNS / name.replace(", ", "-").replace(" ", "-")
    running = Running(progress=False, log_every=20, checkpoint_every=100)
    made = run(pictures, out=out, preset_name="scenes", running=running, **VARIANTS[name])
    seconds = time.perf_counter() - began
    log = [{k: float(v) for k, v in row.items()} for row in csv.DictReader((out / "log.csv").read_text().splitlines())]
    backbone = made.task.backbone.eval()
    learn, test = at_objects(backbone, "val", 600), at_objects(backbone, "test", 400)
    row = {
        f"{where}_{what}": probe(learn[i], learn[j], test[i], test[j]).share
        for i, where in ((0, "last"), (1, "all"))
        for j, what in ((2, "shape"), (3, "colour"))
    }
    row["knn_shape"] = knn(learn[0], learn[2], test[0], test[2]).share
    row |= {key: log[-1][key] for key in ("loss", "used", "rank")} | {"seconds": round(seconds)}
    return {**row, "curve": [{key: entry[key] for key in ("step", "loss", "used", "rank")} for entry in log]}


def main(*names):
    """Run variants, and print the table of all that are recorded."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = RESULTS / "swav_scenes.json"
    rows = json.loads(path.read_text())["rows"] if path.is_file() else {}
    pictures = Arrays(Scenes("train", 10_000).pictures)
    for name in names or VARIANTS:
        rows[name] = one(name, pictures)
        save("swav_scenes", {"variants": VARIANTS, "rows": rows})
    show()


def show():
    """Print the table as Markdown."""
    rows = json.loads((RESULTS / "swav_scenes.json").read_text())["rows"]
    print("| prototypes | steps | shape, last stage | shape, all stages | colour, all stages | loss | in use | rank |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        shares = " | ".join(f"{100 * row[key]:.1f} %" for key in ("last_shape", "all_shape", "all_colour"))
        steps = VARIANTS[name]["steps"]
        print(f"| {name} | {steps} | {shares} | {row['loss']:.2f} | {row['used']:.0%} | {row['rank']:.1f} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        show()
    else:
        main(*sys.argv[1:])
