"""Pools on frozen features of photographs: accuracy beside average pooling, where they look, and why they lost.

    python -m benchmarks.classify FOLDER [MASKS]    # FOLDER: train/ and val/ with a folder for each class; or classes

Features are made once by the best backbone on this machine, in out/bench-classify. Every pool is trained on all
pictures and on five of each class, from three seeds, with bounded scores (the default of `regard classify`) and with
free ones; softmax also with other remedies. Results are written after every training; rerun to resume.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from torch import nn

from benchmarks.harness import RESULTS
from regard._files import replacing
from regard.answering.choice import choose_backbone
from regard.backbones import make_backbone
from regard.classify.evaluate import ObjectMasks, evaluate_head
from regard.classify.features import LabelledNames, named_pictures, split_names, usable_names
from regard.classify.settings import ClassifierSettings
from regard.classify.train import make_task
from regard.swav._labelled import open_labelled
from regard.training import cosine, generator
from regard.vqa.blind import blind_measures
from regard.vqa.features import make_features
from regard.vqa.records import Skipped
from regard.vqa.resampling import resampled_interval

OUT, FILE = Path("out/bench-classify"), RESULTS / "classify.json"
SEEDS, FEW = (0, 1, 2), 5
STEPS = {"all": 300, "few": 150}
BASE = ClassifierSettings(pool="discrete-softmax", batch_size=32)
ATTENTIONS = ("discrete-softmax", "discrete-sparsemax", "discrete-entmax", "continuous-softmax", "continuous-sparsemax")
POOLS = ("average", *ATTENTIONS)
MEASURED = ("mass", "pointing", "divergence")
# How a row differs from the default: settings, and what is done to the task.
WHY = {
    "random start": ({"largest": 1.0}, "random"),
    "scores learn at a tenth of the rate": ({"largest": 1.0}, "slow"),
    "weight decay of scores 1": ({"largest": 1.0}, "decay"),
    "half of the average added": ({"largest": 1.0}, "residual"),
    "dropout 0.5": ({"largest": 1.0, "dropout": 0.5}, ""),
}


class InMemory:
    """A feature store that is read once: rows of some pictures as float16."""

    def __init__(self, store, names):
        """Read them."""
        self.shape, self.description = store.shape, store.description
        self.rows = {name: i for i, name in enumerate(names)}
        self.features = torch.cat([store[names[i : i + 64]].half() for i in range(0, len(names), 64)])

    def __getitem__(self, names):
        return self.features[[self.rows[name] for name in names]].float()


class HalfAverage(nn.Module):
    """An attention whose context is the mean of its own and of the average."""

    def __init__(self, attention):
        """Hold the attention."""
        super().__init__()
        self.attention = attention

    def forward(self, x):
        """Cells (B, L, D) to what was looked at."""
        looked = self.attention(x)
        return looked._replace(context=(looked.context + x.mean(1)) / 2)


def pool_rows():
    """Name, settings, and what is done to the task, of each pool, bounded and free; average pooling first."""
    bounded = [(pool, replace(BASE, pool=pool), "") for pool in POOLS]
    return bounded + [(f"{pool}, free scores", replace(BASE, pool=pool, largest=1.0), "") for pool in ATTENTIONS]


def other_rows():
    """The same of the non-local block, which is the slowest, and of other remedies."""
    remedies = [(f"discrete-softmax, {name}", replace(BASE, **changes), how) for name, (changes, how) in WHY.items()]
    mixed = ("discrete-sparsemax", "continuous-softmax")
    block = ("non-local", replace(BASE, pool="non-local"), "")
    return [block, *remedies] + [
        (f"{pool}, half of the average added", replace(BASE, pool=pool), "residual") for pool in mixed
    ]


def trained(store, learn, classes, settings, how, steps):
    """A head, trained in memory as `regard classify` does, and the number of steps per second."""
    task = make_task(store.shape, classes, settings, "")
    head = task.head
    head.standardise(torch.cat([store[learn.names[i : i + 64]].mean((1, 2)) for i in range(0, len(learn), 64)]))
    score = None if head.attention is None or settings.pool == "non-local" else head.attention.pool.score
    if how == "random":
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            score[-1].reset_parameters()
    if how == "residual":
        inner, head.attention = head.attention, HalfAverage(head.attention)
        head._pooled = lambda x: head.attention(x.flatten(1, 2))
        score = inner.pool.score
    own = [] if score is None else list(score.parameters())
    others = [p for p in task.parameters() if all(p is not q for q in own)]
    rate, decay = settings.lr / 10 if how == "slow" else settings.lr, 1.0 if how == "decay" else settings.weight_decay
    parts = [{"params": others}, {"params": own, "lr": rate, "weight_decay": decay}]
    optimizer = torch.optim.AdamW([p for p in parts if p["params"]], lr=settings.lr, weight_decay=settings.weight_decay)
    full = [group["lr"] for group in optimizer.param_groups]
    schedule, labels = cosine(steps, 20), torch.tensor(learn.labels)
    head.train()
    torch.manual_seed(settings.seed)
    order = torch.cat([torch.randperm(len(learn)) for _ in range(-(-steps * settings.batch_size // len(learn)))])
    for step in range(steps):
        for group, lr in zip(optimizer.param_groups, full, strict=True):
            group["lr"] = lr * schedule(step)
        chosen = order[step * settings.batch_size : (step + 1) * settings.batch_size].tolist()
        loss, _ = task.loss({"features": store[[learn.names[i] for i in chosen]], "labels": labels[chosen]})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval()


def few_of(learn, seed):
    """Five pictures of each class."""
    members = {}
    for name, label in zip(learn.names, learn.labels, strict=True):
        members.setdefault(label, []).append(name)
    chosen = []
    for label, names in members.items():
        order = torch.randperm(len(names), generator=generator(seed, 77, label)).tolist()
        chosen += [(names[i], label) for i in order[:FEW]]
    return LabelledNames(tuple(n for n, _ in chosen), tuple(label for _, label in chosen))


def measure(folder, masks=None):
    """All rows, for every seed; call again to resume."""
    labelled = open_labelled(folder)
    choice = choose_backbone(None, Path("out"))
    pictures = named_pictures(labelled)
    store, skipped = make_features(OUT / "features", pictures, make_backbone(choice.name), name=choice.name)
    learn, held_out = usable_names(store, *split_names(labelled, labelled.split(0.2, 1.0, 0)), skipped)
    known = InMemory(store, [*learn.names, *held_out.names])
    regions = None if masks is None else ObjectMasks(Path(masks), held_out.names, Skipped())
    about = {
        "backbone": choice.about,
        "learned": len(learn),
        "held_out": len(held_out),
        "classes": len(labelled.learn.classes),
    }
    result = json.loads(FILE.read_text()) if FILE.is_file() else {}
    if result.get("about") != about:
        result = {"about": about, "rows": {}}
        if regions is not None:
            blind = {
                name: quality.mean() for name, quality in blind_measures(regions.batches(), store.shape[:2]).items()
            }
            result["blind"] = {name: {m: means[m] for m in (*MEASURED, "area")} for name, means in blind.items()}
    jobs = [
        (row, seed, labels)
        for part in (pool_rows(), other_rows())
        for seed in SEEDS
        for labels in STEPS
        for row in part
    ]
    for (name, settings, how), seed, labels in jobs:
        if str(seed) in result["rows"].get(labels, {}).get(name, {}):
            continue
        part = few_of(learn, seed) if labels == "few" else learn
        start = time.perf_counter()
        head = trained(known, part, about["classes"], replace(settings, seed=seed), how, STEPS[labels])
        evaluated = evaluate_head(head, known, held_out, regions if name != "average" else None)
        row = {"right": "".join(str(int(r)) for r in evaluated.right), "seconds": time.perf_counter() - start}
        if evaluated.quality is not None:
            means = evaluated.quality.mean()
            row |= {m: means[m] for m in (*MEASURED, "entropy", "focus")}
        result["rows"].setdefault(labels, {}).setdefault(name, {})[str(seed)] = row
        print(f"{labels} {seed} {name}: {100 * row['right'].count('1') / len(held_out):.2f}", flush=True)
        with replacing(FILE) as beside:
            beside.write_text(json.dumps(result) + "\n")
    print(table(result))


def table(result):
    """The rows as Markdown: accuracy over seeds, its difference from average pooling with an interval, the measures."""
    lines = []
    for labels, found in result["rows"].items():
        lines += [
            f"\n{labels}\n",
            "| pool | accuracy | against average | mass | pointing | divergence |",
            "|---|---|---|---|---|---|",
        ]
        average = {seed: _bits(row["right"]) for seed, row in found["average"].items()}
        for name, seeds in found.items():
            right = {seed: _bits(row["right"]) for seed, row in seeds.items()}
            accuracies = [100 * bits.mean() for bits in right.values()]
            spread = f" ± {numpy.std(accuracies, ddof=1) if len(accuracies) > 1 else math.nan:.1f}"
            beside = ""
            if name != "average":
                points = 100 * numpy.mean([right[s] - average[s] for s in right], axis=0)
                low, high = resampled_interval(points, [str(i) for i in range(len(points))], lowest=-100.0)
                beside = f"{points.mean():+.1f} ({low:+.1f} to {high:+.1f})"
            looks = [
                numpy.mean([row[m] for row in seeds.values()]) if m in next(iter(seeds.values())) else None
                for m in MEASURED
            ]
            cells = " | ".join("" if look is None else f"{look:.2f}" for look in looks)
            lines.append(f"| {name} | {numpy.mean(accuracies):.1f}{spread} | {beside} | {cells} |")
    for name, means in result.get("blind", {}).items():
        lines.append(
            f"| {name} (area {means['area']:.2f}) | | | " + " | ".join(f"{means[m]:.2f}" for m in MEASURED) + " |"
        )
    return "\n".join(lines)


def _bits(text):
    return numpy.array([float(c) for c in text])


if __name__ == "__main__":
    measure(*sys.argv[1:3])
