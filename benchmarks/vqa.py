"""Visual question answering at the thesis' sizes: cost of an output attention in a step; memory with many pictures.

A whole step (batch 64, 14 x 14 x 2048, six layers of width 512) takes half a minute on two cores, so each kind runs few
of them, in turn; the kinds differ only in the output attention, which is also measured alone.
"""

from __future__ import annotations

import subprocess
import sys

import torch

from benchmarks.harness import PEAK, Row, race, report
from regard.vqa.mcan import MCAN
from regard.vqa.output import OutputAttention
from regard.vqa.settings import ModelSettings

DISCRETE = "discrete-softmax"
BATCH, SIDE, FEATURES, ANSWERS, WORDS = 64, 14, 2048, 3129, 20000
PROMISED = {"continuous-softmax": 1.05, "continuous-sparsemax": 1.1}
OTHERS = ("mixture-2", "mixture-4")
PICTURES = (200, 20_000)


def main() -> None:
    """Memory, then step time."""
    report("vqa", (row for part in (memory, steps) for row in part()))


def steps() -> list[Row]:
    torch.manual_seed(0)
    settings = ModelSettings(basis="thesis-100")
    model = MCAN(settings, vocabulary=WORDS, answers=ANSWERS, cells=(SIDE, SIDE), features=FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    words = torch.randint(1, WORDS, (BATCH, settings.tokens))

    features, targets = torch.randn(BATCH, SIDE, SIDE, FEATURES), torch.rand(BATCH, ANSWERS)

    def step(kind: str) -> None:
        optimizer.zero_grad()
        scores = model(features, words, attention=kind).scores  # the same parameters
        model.loss(scores, targets).backward()
        optimizer.step()

    whole = race({kind: (lambda kind=kind: step(kind)) for kind in (DISCRETE, *PROMISED)}, seconds=0.0, least=3)
    rows = []
    for kind, promise in PROMISED.items():
        ours, theirs = whole[kind].median, whole[DISCRETE].median
        kept = ours <= promise * theirs
        rows.append(Row(f"a training step with {kind}", "ms", ours, f"with {DISCRETE}", theirs, f"<= {promise}x", kept))
    x = torch.randn(BATCH, SIDE * SIDE, settings.width, requires_grad=True)
    upstream = torch.randn(BATCH, settings.fused)
    pools = {
        kind: OutputAttention(
            settings.width,
            (SIDE, SIDE),
            kind,
            basis="thesis-100",
            hidden=settings.flat,
            out=settings.fused,
            dropout=0.1,
        )
        for kind in (DISCRETE, *PROMISED, *OTHERS)
    }

    def run(kind: str) -> None:
        x.grad = None
        pools[kind](x).context.backward(upstream)

    times = race({kind: (lambda kind=kind: run(kind)) for kind in pools}, seconds=10.0)
    base = times[DISCRETE].median
    for kind in (*PROMISED, *OTHERS):
        rows.append(Row(f"output attention alone, {kind}", "ms", times[kind].median, DISCRETE, base))
    return rows


TRAIN = """
import tempfile, json, sys
from pathlib import Path
import numpy, torch
from regard.training import Running
from regard.vqa.description import FeatureDescription
from regard.vqa.features import FeatureStore
from regard.vqa.settings import small
from regard.vqa.records import Record, Records
from regard.vqa.settings import small_training
from regard.vqa.train import train
count = int(sys.argv[1])
with tempfile.TemporaryDirectory() as place:
    place = Path(place)
    names = [f"picture {i}" for i in range(count)]
    with (place / "features.bin").open("wb") as file:
        for i in range(count):
            file.write(numpy.random.RandomState(i).standard_normal(12800).astype(numpy.float16).tobytes())
    (place / "state.bin").write_bytes(bytes([1]) * count)
    description = FeatureDescription("synthetic", "0" * 16, False, 80).to_json()
    stored = {"names": names, "shape": [10, 10, 128], "features": description}
    (place / "store.json").write_text(json.dumps(stored))
    records = [Record(i, names[i % count], "what is it", (("yes", "no")[i % 2],) * 10) for i in range(20_000)]
    sizes = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24}
    settings = small_training(model=small(**sizes), epochs=1)
    all_records, quiet = Records("synthetic", records, {}), Running(progress=False)
    train(place / "out", all_records, FeatureStore.open(place), settings, running=quiet)
print("PEAK", peak())
"""


def memory() -> list[Row]:
    """Peak memory of a training run on 20,000 questions about few and about many pictures."""
    peaks = []
    for count in PICTURES:
        done = subprocess.run(
            [sys.executable, "-c", PEAK + TRAIN, str(count)], capture_output=True, text=True, check=True
        )
        peaks.append(float(done.stdout.split("PEAK")[1]))
    few, many = peaks
    size = PICTURES[1] * 12800 * 2 / 1e6
    case = f"resident set of training, {PICTURES[1]} pictures ({size:.0f} MB of features)"
    return [Row(case, "MB", many, f"{PICTURES[0]} pictures", few, "<= 1.1x", many <= 1.1 * few)]
