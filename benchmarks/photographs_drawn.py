"""Pictures of where runs of benchmarks.photographs looked, drawn at random: as many right as wrong answers.

    python -m benchmarks.photographs_drawn NAME DATA FEATURES MASKS FILE.png [KIND...] [--seed 0]

Rows are questions, columns the picture with the object that the question names and each kind of attention, with the
answer that it gave. The questions are among the 24 that every run keeps, which are drawn before anything is trained.
The pictures are yours: mind their licence before you show them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
import torch
from PIL import Image

from benchmarks.photographs import BASE, OUT, SMOOTH, Task

EACH = 3  # questions answered right by the first kind, and as many answered wrong


def draw(name, data, features, masks, file, kinds, seed):
    """Draw them; what is drawn, as text."""
    from matplotlib.figure import Figure

    task = Task(data, features, masks)
    examples = task.parts.get("question", task.parts["all"])
    runs = {}
    for kind in kinds:
        with numpy.load(OUT / name / f"{kind}-{seed}.npz") as stored:
            runs[kind] = dict(stored)
    records = [examples.questions[i] for i in task.drawn]
    said = {kind: [task.answers.spelled[number] for number in run["said"]] for kind, run in runs.items()}
    right = [said[kinds[0]][i] == record.answers[0] for i, record in enumerate(records)]
    chosen = [i for i, yes in enumerate(right) if yes][:EACH] + [i for i, yes in enumerate(right) if not yes][:EACH]
    figure = Figure(figsize=(3.2 * (1 + len(kinds)), 2.9 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 1 + len(kinds), squeeze=False)
    for row, i in zip(axes, chosen, strict=True):
        record = records[i]
        with Image.open(task.test.pictures[record.picture]) as opened:
            picture = numpy.asarray(opened.convert("RGB"))
        extent = (0, picture.shape[1], picture.shape[0], 0)
        for ax in row:
            ax.imshow(picture, extent=extent)
            ax.set_axis_off()
        row[0].set_title(f"{record.question}\n{record.answers[0]}", fontsize=7, wrap=True)
        if examples.has_regions:
            region = examples.regions([task.drawn[i]])[0].numpy()
            row[0].imshow(region, extent=extent, alpha=0.45 * region, cmap="autumn")
        for ax, kind in zip(row[1:], kinds, strict=True):
            weights = runs[kind]["drawn"][i].reshape(task.store.shape[:2])
            even = numpy.asarray(Image.fromarray(weights / weights.max()).resize((140, 140), Image.Resampling.BILINEAR))
            ax.imshow(even, extent=extent, alpha=0.6, cmap="magma", vmin=0)
            ax.set_title(f"{kind}: {said[kind][i]}", fontsize=8)
    figure.savefig(file, dpi=80)
    return f"{sum(right)} of the {len(right)} questions are answered right by {kinds[0]}; drawn: {chosen} -> {file}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Where runs looked, drawn at random.")
    for argument in ("name", "data", "features", "masks", "file"):
        parser.add_argument(argument, type=str if argument == "name" else Path)
    parser.add_argument("kinds", nargs="*", default=[BASE, SMOOTH])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        draw(given.name, given.data, given.features, given.masks, given.file, given.kinds or [BASE, SMOOTH], given.seed)
    )
