"""Visual question answering at the thesis' sizes: what an output attention costs in a step; memory with many pictures.

A whole step (batch 64, 14 x 14 x 2048, six layers of width 512) takes many seconds on a processor, and the kinds differ
in the output attention alone. So the step is timed once, the output attentions are raced, and the step with a kind is
the step with discrete softmax plus the difference.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from benchmarks.harness import PEAK, Row, race, report
from regard.vqa.mcan import MCAN, ModelSettings
from regard.vqa.output import OutputAttention

BATCH, SIDE, FEATURES, ANSWERS, WORDS = 64, 14, 2048, 3129, 20000
KINDS = {"continuous-softmax": 1.05, "continuous-sparsemax": 1.1, "mixture-2": None, "mixture-4": None}
PICTURES = (200, 20_000)


def main() -> None:
    """Step time, then memory."""
    report("vqa", [*memory(), *steps()])


def steps() -> list[Row]:
    torch.manual_seed(0)
    settings = ModelSettings(basis="thesis-100")
    model = MCAN(settings, vocabulary=WORDS, answers=ANSWERS, cells=(SIDE, SIDE), features=FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    words = torch.randint(1, WORDS, (BATCH, settings.tokens))

    def step(batch: int) -> float:
        features, targets = torch.randn(batch, SIDE, SIDE, FEATURES), torch.rand(batch, ANSWERS)
        began = time.perf_counter()
        optimizer.zero_grad()
        model.loss(model(features, words[:batch]).scores, targets).backward()
        optimizer.step()
        return 1e3 * (time.perf_counter() - began)

    step(4)  # memory of the optimiser, threads
    whole = step(BATCH)
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
        for kind in ("discrete-softmax", *KINDS)
    }

    def run(kind: str) -> None:
        x.grad = None
        pools[kind](x).context.backward(upstream)

    times = race({kind: (lambda kind=kind: run(kind)) for kind in pools}, seconds=10.0)
    base = times["discrete-softmax"].median
    rows = []
    for kind, promise in KINDS.items():
        ours = whole + times[kind].median - base
        told = "" if promise is None else f"<= {promise}x"
        kept = None if promise is None else ours <= promise * whole
        rows.append(Row(f"a training step with {kind}", "ms", ours, "with discrete softmax", whole, told, kept))
        rows.append(Row(f"its output attention alone, {kind}", "ms", times[kind].median, "discrete softmax", base))
    return rows


TRAIN = """
import tempfile, json, sys
from pathlib import Path
import numpy, torch
from regard.vqa.features import FeatureStore
from regard.vqa.mcan import small
from regard.vqa.records import Record, Records
from regard.vqa.train import small_training, train
count = int(sys.argv[1])
with tempfile.TemporaryDirectory() as place:
    place = Path(place)
    names = [f"picture {i}" for i in range(count)]
    with (place / "features.bin").open("wb") as file:
        for i in range(count):
            file.write(numpy.random.RandomState(i).standard_normal(12800).astype(numpy.float16).tobytes())
    (place / "state.bin").write_bytes(bytes([1]) * count)
    said = {"names": names, "shape": [10, 10, 128], "backbone": "synthetic", "fingerprint": "0" * 16}
    (place / "store.json").write_text(json.dumps(said))
    records = [Record(i, names[i % count], "what is it", (("yes", "no")[i % 2],) * 10) for i in range(20_000)]
    sizes = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24}
    settings = small_training(model=small(**sizes), epochs=1)
    train(place / "out", Records("made", records, {}), FeatureStore.open(place), settings, progress=False)
print("PEAK", peak())
"""


def memory() -> list[Row]:
    """The peak of a training run on 20,000 questions over few and over many pictures, as the system counts it."""
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
