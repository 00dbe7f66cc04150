"""Which attention can be trusted: what output attention reads, and how sparse attention learns to look.

    python -m benchmarks.trust DATA FEATURES [STEPS] [SEEDS]    # as of regard scenes and regard features

Every row is a training of the small preset, in memory, with the same batches for all rows of a seed; then accuracy,
mass on the object, pointing, and faithfulness on the test split, cells hidden in the stored features. Two rows are no
settings of regard: `straight-through` (sparsemax forward, the gradient of softmax: every cell is reached) and `wide
start` (scores start at zero: no cell begins dead). Results are written after every training; rerun to resume.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.harness import RESULTS
from regard._files import replacing
from regard.maps.entmax import softmax, sparsemax
from regard.training import Muon, cosine, generator, muon_groups
from regard.vqa.evaluate import evaluate_model
from regard.vqa.examples import Examples, Grouped
from regard.vqa.faithfulness import CURVES, measure_faithfulness
from regard.vqa.feature_store import FeatureStore
from regard.vqa.hiding import HideFeatures
from regard.vqa.kinds import parse
from regard.vqa.mcan import MCAN
from regard.vqa.output import Looked, OutputAttention
from regard.vqa.read import read_questions
from regard.vqa.records import Answers
from regard.vqa.settings import small
from regard.vqa.words import Words

FILE = RESULTS / "trust.json"
SOFT, SPARSE, SMOOTH = "discrete-softmax", "discrete-sparsemax", "continuous-softmax"
# What is read, the kind, and what is done to its training.
ROWS = [
    ("mixed", SPARSE, ""),
    ("mixed", SPARSE, "annealed"),
    ("own", SPARSE, ""),
    ("mixed", SPARSE, "straight-through"),
    ("mixed", SPARSE, "wide start"),
    ("mixed", SOFT, ""),
    ("own", SOFT, ""),
    ("own", SPARSE, "annealed"),
    ("mixed", SMOOTH, ""),
    ("own", SMOOTH, ""),
]
PICTURES, ANNEALED, FAITHFUL, LR, CLIP = 10, 0.5, 60, 2e-3, 64.0


class InMemory:
    """A feature store that is read once, as float16."""

    def __init__(self, store, names):
        """Read the rows of some pictures."""
        self.shape, self.folder, self.description = store.shape, store.folder, store.description
        self.rows = {name: i for i, name in enumerate(names)}
        self.features = torch.cat([store[names[i : i + 256]].half() for i in range(0, len(names), 256)])

    def has(self, name):
        """Whether it was read."""
        return name in self.rows

    def __getitem__(self, names):
        return self.features[[self.rows[name] for name in names]].float()

    def sample(self, count):
        """Some rows, spread evenly."""
        return self.features[:: max(1, len(self.features) // count)][:count].float()


class StraightThrough(OutputAttention):
    """Sparsemax forward, with the gradient of softmax."""

    def forward(self, x, mask=None, kind=None, values=None):
        """Cells to a context."""
        s = self.pool.score(x).squeeze(-1)
        x = x if values is None else values
        p = softmax(s)
        weights = sparsemax(s).detach() + p - p.detach() if self.training else sparsemax(s)
        return Looked(self.pool.merge((weights.unsqueeze(-2) @ x).squeeze(-2)), weights, weights, None)


def trained(examples, store, words, answers, reads, kind, how, seed, steps):
    """A model after so many steps."""
    torch.manual_seed(seed)
    model = MCAN(
        small(attention=kind, reads=reads),
        vocabulary=len(words),
        answers=len(answers),
        cells=store.shape[:2],
        features=store.shape[2],
    )
    model.standardise(store.sample(256))
    if how == "wide start":
        torch.nn.init.zeros_(model.flat_picture.pool.score[-1].weight)
    if how == "straight-through":
        model.flat_picture.__class__ = StraightThrough
    groups = muon_groups(model, apart=["head"])
    optimizer = Muon(groups, lr=LR, betas=(0.9, 0.98), eps=1e-9)
    full = [group["lr"] for group in optimizer.param_groups]
    schedule, grouped = cosine(steps, min(100, steps // 10)), Grouped(examples)
    draw = generator(seed, 5)
    order = torch.cat(
        [torch.randperm(len(grouped), generator=draw) for _ in range(-(-steps * PICTURES // len(grouped)))]
    )
    model.train()
    for step in range(steps):
        for group, lr in zip(optimizer.param_groups, full, strict=True):
            group["lr"] = lr * schedule(step)
        batch = grouped.batch(order[step * PICTURES : (step + 1) * PICTURES].tolist())
        attention = parse(kind)
        if how == "annealed":
            attention = attention.annealed(min(1.0, step / (ANNEALED * steps)))
        scores, _ = model(batch["features"], batch["words"], batch["rows"], attention=attention)
        loss = model.loss(scores, batch["targets"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return model.eval()


def measured(model, examples, answers, hide, kind):
    """Accuracy, by family too, attention quality and faithfulness."""
    evaluation = evaluate_model(model, examples, answers)
    quality, means = evaluation.quality, evaluation.quality_means()["one region"]
    one = torch.tensor([r.regions is not None and len(r.regions) == 1 for r in examples.questions])
    found = measure_faithfulness(model, examples, hide, [kind], questions=FAITHFUL)[kind]
    return {
        "accuracy": evaluation.accuracy.overall,
        "families": evaluation.accuracy.by_question_type,
        "mass": means["mass"],
        "pointing": means["pointing"],
        "support": means["support"],
        "unseen": float((quality.mass[one] <= 1e-6).double().mean()),  # questions whose object has no weight at all
        "faithfulness": found.to_json(),
    }


def measure(data, features, steps=400, seeds=2):
    """All rows for every seed; call again to resume. Default: 400 steps, two seeds."""
    torch.set_num_threads(1)
    disk = FeatureStore.open(features)
    train, test = read_questions(data, "train").keep_answered(), read_questions(data, "test")
    names = list(dict.fromkeys(r.picture for r in train.records))[: min(len(train.pictures), int(steps) * PICTURES)]
    train.records[:] = [r for r in train.records if r.picture in set(names)]
    words, answers = Words.of(r.question for r in train.records), Answers.of(train.records, 8)
    store = InMemory(disk, [*names, *dict.fromkeys(r.picture for r in test.records)])
    learn = Examples(train, store, words, answers, 14)
    held_out = Examples(test, store, words, answers, 14)
    hide = HideFeatures(store)
    about = {"pictures": len(names), "steps": int(steps), "questions": len(held_out)}
    result = json.loads(FILE.read_text()) if FILE.is_file() else {"about": about, "rows": {}}
    if result["about"] != about:
        raise SystemExit(f"{FILE} has results of {result['about']}, and this is {about}. Move it away.")
    for seed in range(int(seeds)):
        for reads, kind, how in ROWS:
            name = f"{kind}, {reads}" + (f", {how}" if how else "")
            if str(seed) in result["rows"].get(name, {}):
                continue
            start = time.process_time()
            model = trained(learn, store, words, answers, reads, kind, how, seed, int(steps))
            seconds = time.process_time() - start
            row = measured(model, held_out, answers, hide, kind) | {"seconds": seconds}
            result["rows"].setdefault(name, {})[str(seed)] = row
            said = {key: round(row[key], 3) for key in ("accuracy", "mass", "pointing", "support", "unseen", "seconds")}
            print(seed, name, said, flush=True)
            with replacing(FILE) as beside:
                beside.write_text(json.dumps(result) + "\n")
    print(table(result))


def table(result):
    """The rows as Markdown: means over seeds, with the number of seeds."""
    head = "accuracy | mass | pointing | object without weight | support | deletion against random | insertion"
    lines = [f"| attention, reads | seeds | {head} against random |", "|---|---|---|---|---|---|---|---|---|"]
    for name, seeds in result["rows"].items():
        rows = list(seeds.values())

        def mean(value, rows=rows):
            return sum(map(value, rows)) / len(rows)

        numbers = [f"{mean(lambda row: row['accuracy']):.1f}"]
        numbers += [f"{mean(lambda row, key=key: row[key]):.2f}" for key in ("mass", "pointing", "unseen", "support")]
        for curve in CURVES:
            gain = mean(lambda row, curve=curve: row["faithfulness"]["gains"][curve]["random"][0])
            numbers.append(f"{gain:+.3f}")
        lines.append(f"| {name} | {len(rows)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measure(*sys.argv[1:5])
