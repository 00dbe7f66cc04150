"""Kinds of attention on photographs with people's questions: the table of docs/photographs.md.

    python -m benchmarks.photographs NAME                            # the table of the recorded results
    python -m benchmarks.photographs NAME DATA FEATURES [MASKS] [--seeds 3] [--epochs 6] [--kinds KIND...]

`DATA` is a folder of DAQUAR or VQA-RAD as it is distributed, `FEATURES` what `regard features` made of its pictures,
`MASKS` a folder with the masks of nyuv2-meta-data (for DAQUAR). Every row is a training of the small preset without
neighbours, in memory, with the same batches for all rows of a seed; then accuracy on the test split, what the attention
has of the object that the question names, and of the one that the answer names, and curves of deletion and insertion,
cells hidden in the stored features. Every run is stored in out/photographs; rerun to resume. The table is printed, and
written with its numbers to benchmarks/results/photographs_NAME.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy
import torch

from benchmarks.harness import RESULTS
from benchmarks.trust import InMemory
from regard._files import replacing
from regard.training import Muon, cosine, generator, muon_groups
from regard.vqa.attention_quality import concatenate, quality_of
from regard.vqa.baseline import answer_baselines
from regard.vqa.blind import blind_measures
from regard.vqa.evaluate import evaluate_model
from regard.vqa.examples import Examples, Grouped
from regard.vqa.faithfulness import CURVES, attention_on_cells, measure_faithfulness
from regard.vqa.feature_store import FeatureStore
from regard.vqa.hiding import HideFeatures
from regard.vqa.mcan import MCAN
from regard.vqa.named_objects import named_classes
from regard.vqa.read import read_questions
from regard.vqa.records import Answers
from regard.vqa.regions import MASK_SIDE
from regard.vqa.resampling import resampled_interval
from regard.vqa.settings import small
from regard.vqa.tables import cell
from regard.vqa.words import Words

OUT = Path("out/photographs")
QUESTION, BASE, SMOOTH, SELECTED = "question alone", "discrete-softmax", "continuous-softmax", "mixture-selected"
MAIN = (QUESTION, BASE, SMOOTH, "discrete-sparsemax", "mixture-2")  # all seeds of these come first
OWN = ", own"  # of a kind that reads each cell as it is without the others
OTHERS = (BASE + OWN, "discrete-entmax", "continuous-sparsemax", "mixture-4", "discrete-tvmax")
# A model of the first kind is also asked with these: kinds share their parameters.
ASKED = {BASE: (SMOOTH,), SMOOTH: (BASE, SELECTED)}
MEASURES = ("mass", "pointing", "divergence")
OBJECTS = ("question", "answer")  # whose words name the object
RIVALS = ("random", "centre", "gradient x input")  # orders of cells that attention is compared with
TOKENS, PICTURES, LR, CLIP, ABOVE, FAITHFUL, DRAWN, SIDE, BATCH = 20, 5, 2e-3, 64.0, 18, 60, 24, 56, 64


class Blank(InMemory):
    """A store of pictures without content: each cell is the mean feature."""

    def __init__(self, store):
        """With the shape and the names of another store."""
        self.shape, self.folder, self.description, self.rows = store.shape, store.folder, store.description, store.rows
        self.mean = store.sample(256).flatten(0, -2).mean(0)
        self.whole = store

    def __getitem__(self, names):
        return self.mean.expand(len(names), *self.shape).contiguous()

    def sample(self, count):
        """Of the store with content, so that features are scaled alike."""
        return self.whole.sample(count)


class Task:
    """A data set, read: training and test questions, those with an object, features in memory."""

    def __init__(self, data, features, masks):
        """Read all of it."""
        disk = FeatureStore.open(features)
        self.train = read_questions(data, "train").keep_answered()
        self.test = read_questions(data, "test", regions=masks).keep_answered()
        names = dict.fromkeys(r.picture for part in (self.train, self.test) for r in part.records)
        self.store = InMemory(disk, [name for name in names if disk.has(name)])
        self.words = Words.of(r.question for r in self.train.records)
        self.answers = Answers.of(self.train.records, ABOVE)
        plain = [replace(r, regions=None) for r in self.test.records]
        self.parts = {"all": self.examples(replace(self.test, records=plain))}
        if masks is not None:
            answer = [replace(r, regions=named_classes(r.answers[0]) or None) for r in self.test.records]
            for name, records in (("question", self.test.records), ("answer", answer)):
                self.parts[name] = self._present(replace(self.test, records=[r for r in records if r.regions]))
        draw = generator(0, 9)
        shown = self.parts.get("question", self.parts["all"])
        self.drawn = torch.randperm(len(shown), generator=draw)[:DRAWN].tolist()

    def examples(self, records, store=None):
        """Examples of records."""
        return Examples(records, store or self.store, self.words, self.answers, TOKENS)

    def baselines(self):
        """The accuracies of two baselines that see no picture."""
        found = answer_baselines(self.train.records, self.parts["all"].questions)
        return {name: accuracy.overall for name, accuracy in found.items()}

    def blind(self):
        """What attention that does not look has of the objects."""
        found = {}
        for name, regions in self.regions.items():
            quality = blind_measures(regions.split(BATCH), self.store.shape[:2])
            found[name] = {one: {m: q.mean()[m] for m in (*MEASURES, "area")} for one, q in quality.items()}
        return found

    @cached_property
    def regions(self):
        """The masks (n, SIDE, SIDE) of the questions whose object is measured, by whose words name it."""
        every = {name: part.regions(list(range(len(part)))) for name, part in self.parts.items() if name != "all"}
        rows, columns = (((2 * torch.arange(SIDE) + 1) * MASK_SIDE) // (2 * SIDE) for _ in range(2))
        return {name: masks[:, rows][:, :, columns] for name, masks in every.items()}

    def _present(self, records):
        """Without the questions whose object is not in the mask."""
        every = self.examples(records)
        there = [bool(every.regions([i]).any()) for i in range(len(every))]
        return self.examples(
            replace(records, records=[r for r, yes in zip(every.questions, there, strict=True) if yes])
        )


def settings_of(kind):
    """The model of a row."""
    attention = BASE if kind == QUESTION else kind.removesuffix(OWN)
    return small(attention=attention, reads="own" if OWN in kind else "mixed", neighbours=False, tokens=TOKENS)


def trained(task, kind, seed, epochs):
    """A model of a kind."""
    store = Blank(task.store) if kind == QUESTION else task.store
    torch.manual_seed(seed)
    model = MCAN(
        settings_of(kind),
        vocabulary=len(task.words),
        answers=len(task.answers),
        cells=store.shape[:2],
        features=store.shape[2],
    )
    model.standardise(store.sample(256))
    optimizer = Muon(muon_groups(model, apart=["head"]), lr=LR, betas=(0.9, 0.98), eps=1e-9)
    full = [group["lr"] for group in optimizer.param_groups]
    grouped = Grouped(task.examples(task.train, store))
    per_epoch = -(-len(grouped) // PICTURES)
    schedule, draw = cosine(per_epoch * epochs, min(100, per_epoch * epochs // 10)), generator(seed, 5)
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(len(grouped), generator=draw).tolist()
        for number in range(per_epoch):
            for group, lr in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = lr * schedule(epoch * per_epoch + number)
            batch = grouped.batch(order[number * PICTURES : (number + 1) * PICTURES])
            scores, _ = model(batch["features"], batch["words"], batch["rows"])
            optimizer.zero_grad()
            model.loss(scores, batch["targets"]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    return model.eval()


@torch.no_grad()
def looked_at(model, task, kind):
    """What a kind of attention has of the objects: arrays by whose words name them and by measure."""
    found = {}
    for name, regions in task.regions.items():
        parts = []
        for start in range(0, len(regions), BATCH):
            chosen = list(range(start, min(start + BATCH, len(regions))))
            batch = task.parts[name].shared(chosen)
            looked = model(batch["features"], batch["words"], batch["rows"], attention=kind).looked
            parts.append(quality_of(looked.weights.reshape(-1, *model.cells), looked.density, regions[chosen]))
        quality = concatenate(parts)
        found |= {f"{name} {measure}": getattr(quality, measure).float().numpy() for measure in MEASURES}
    return found


def right_of(model, examples, answers, kind=None):
    """Whether each question is answered right."""
    each = evaluate_model(model, examples, answers, kind).accuracy.each
    return numpy.array([each[record.id] > 0.5 for record in examples.questions])


@torch.no_grad()
def shown(model, task):
    """The attention on the cells of the drawn questions, and the answers."""
    examples = task.parts.get("question", task.parts["all"])
    batch = examples.shared(task.drawn)
    scores, looked = model(batch["features"], batch["words"], batch["rows"])
    return attention_on_cells(looked, model.cells).numpy(), scores.argmax(-1).numpy()


def measured(task, kind, seed, epochs):
    """All arrays of a row, and its faithfulness."""
    start = time.process_time()
    model = trained(task, kind, seed, epochs)
    seconds = time.process_time() - start
    if kind == QUESTION:
        blank = task.examples(replace(task.test, records=task.parts["all"].questions), Blank(task.store))
        return {"right": right_of(model, blank, task.answers), "seconds": seconds}
    found = {"right": right_of(model, task.parts["all"], task.answers), "seconds": seconds}
    found |= looked_at(model, task, model.attention)
    found["drawn"], found["said"] = shown(model, task)
    for other in ASKED.get(kind, ()):
        found[f"{other}: right"] = right_of(model, task.parts["all"], task.answers, other)
        found |= {f"{other}: {name}": values for name, values in looked_at(model, task, other).items()}
    hide = HideFeatures(task.store)
    curves = measure_faithfulness(model, task.parts["all"], hide, [model.attention], questions=FAITHFUL)
    found["faithfulness"] = json.dumps(curves[model.attention].to_json())
    return found


def measure(name, data, features, masks, seeds, epochs, kinds):
    """All rows for every seed; call again to resume."""
    torch.set_num_threads(1)
    task = Task(data, features, masks)
    sizes = {part: len(examples) for part, examples in task.parts.items()}
    about = {
        "epochs": epochs,
        "train": len(task.train),
        "cells": list(task.store.shape[:2]),
        "answers": len(task.answers),
    }
    about |= {"questions": sizes}
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "about.json"
    if known.is_file() and json.loads(known.read_text()) != about:
        raise SystemExit(f"{folder} has runs of {known.read_text()}, and this is {json.dumps(about)}. Move it away.")
    with replacing(known) as beside:
        beside.write_text(json.dumps(about))
    blind = folder / "blind.json"
    if not blind.is_file():
        with replacing(blind) as beside:
            beside.write_text(json.dumps({"baselines": task.baselines(), "blind": task.blind()}))
    without = json.loads(blind.read_text())
    runs = {}
    for part in (MAIN, OTHERS):
        for seed, kind in product(range(seeds), [kind for kind in part if kind in kinds]):
            file = folder / f"{kind.replace(',', '').replace(' ', '-')}-{seed}.npz"
            if not file.is_file():
                found = measured(task, kind, seed, epochs)
                with replacing(file) as beside, beside.open("wb") as stream:
                    numpy.savez_compressed(stream, **found)
                said = {
                    key: round(float(numpy.mean(found[key])), 3) for key in found if key.endswith(("right", " mass"))
                }
                print(seed, kind, said, f"{float(found['seconds']):.0f} s", flush=True)
            with numpy.load(file) as stored:
                runs.setdefault(kind, []).append(dict(stored))
            report(name, summary(task, runs, about, without))
    print(table(summary(task, runs, about, without)))


def summary(task, runs, about, without):
    """The numbers of all runs so far, as JSON."""
    rows = {}
    for kind, stored in runs.items():
        rows[kind] = _row(task, stored, "", runs.get(BASE), runs)
        if "faithfulness" in stored[0]:
            curves = [json.loads(str(run["faithfulness"])) for run in stored]
            rows[kind]["gains"] = {
                curve: {other: [c["gains"][curve][other][0] for c in curves] for other in curves[0]["gains"][curve]}
                for curve in CURVES
            }
        for other in ASKED.get(kind, ()):
            rows[f"{kind}, asked with {other}"] = _row(task, stored, f"{other}: ", None, runs)
    return {"about": about, **without, "rows": rows}


def _row(task, stored, prefix, base, runs):
    """The accuracy and measures of a row, one number per seed, and its difference from discrete softmax."""
    right = [run[f"{prefix}right"] for run in stored]
    names = [record.picture for record in task.parts["all"].questions]
    row = {"accuracy": [100 * float(one.mean()) for one in right]}
    for part in OBJECTS:
        for m in MEASURES:
            key = f"{prefix}{part} {m}"
            if key in stored[0]:
                row[f"{part} {m}"] = [float(numpy.nanmean(run[key])) for run in stored]
    for key, other in (("against", base), ("against question", None if prefix else runs.get(QUESTION))):
        if other:  # on the seeds that both have
            pairs = list(zip(right, (run["right"] for run in other), strict=False))
            ours, theirs = (_mean(arrays) for arrays in zip(*pairs, strict=True))
            row[key] = _difference(100 * ours, 100 * theirs, names)
    return row


def _mean(arrays):
    return numpy.mean([numpy.asarray(one, dtype=float) for one in arrays], axis=0)


def _difference(ours, theirs, names):
    """The mean difference of two arrays of questions, with its interval over pictures."""
    points = ours - theirs
    if not points.any():
        return [0.0, 0.0, 0.0]
    return [float(points.mean()), *resampled_interval(points, names, lowest=-100.0)]


def report(name, numbers):
    """Write the numbers."""
    with replacing(RESULTS / f"photographs_{name}.json") as beside:
        beside.write_text(json.dumps(numbers) + "\n")


def table(numbers):
    """The rows as Markdown: accuracy, what the attention has of the objects, and curves."""
    rows, parts = numbers["rows"], list(numbers["blind"])
    lines = _head("", "accuracy", "against the question alone", "against discrete softmax")
    lines += [f"| {name} | {accuracy:.1f} | | |" for name, accuracy in numbers["baselines"].items()]
    for name, row in rows.items():
        known = [row.get(key) for key in ("against question", "against")]
        points = ["{:+.1f} ({:+.1f} to {:+.1f})".format(*one) if one and any(one) else "" for one in known]
        lines.append(f"| {name} | {cell(row['accuracy'])} | {' | '.join(points)} |")
    if parts:
        keys = [f"{part} {m}" for part in parts for m in MEASURES]
        lines += ["", *_head("", *(f"{m}, {part}" for part in parts for m in MEASURES))]
        looked = {name: [cell(row[key], 2) for key in keys] for name, row in rows.items() if keys[0] in row}
        for name in ("even spread", "centred blob"):
            looked[name] = [f"{numbers['blind'][part][name][m]:.2f}" for part in parts for m in MEASURES]
        lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in looked.items()]
    curves = {name: row["gains"] for name, row in rows.items() if "gains" in row}
    if curves:
        lines += ["", *_head("", *(f"{curve} against {other}" for curve in CURVES for other in RIVALS))]
        for name, gains in curves.items():
            lines.append(f"| {name} | {' | '.join(cell(gains[c][r], 3) for c in CURVES for r in RIVALS)} |")
    return "\n".join(lines)


def _head(*names):
    """The head of a table."""
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kinds of attention on photographs with people's questions.")
    parser.add_argument("name")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("masks", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--kinds", nargs="*", choices=MAIN + OTHERS, default=MAIN + OTHERS, metavar="KIND")
    given = parser.parse_args()
    if given.features is None:
        print(table(json.loads((RESULTS / f"photographs_{given.name}.json").read_text())))
    else:
        measure(given.name, given.data, given.features, given.masks, given.seeds, given.epochs, given.kinds)
