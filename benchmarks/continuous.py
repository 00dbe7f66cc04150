"""Continuous attention against discrete softmax attention of the same shape: batch 64, L = 196, N = 100, D = 1024."""

from __future__ import annotations

import torch

from benchmarks.harness import Row, peak_memory, race, report
from regard import continuous as C

BATCH, SIDE, CHANNELS = 64, 14, 1024
VARIANCE = 1e-3
CONTESTANTS = {
    "Gaussian": ({}, 1.3),
    "Paraboloid": ({"alpha": 2}, 3.0),
    "mixture of 4, 5 iterations": ({"components": 4, "iterations": 5}, 2.5),
}

SETUP = f"""
import torch
from regard import continuous as C
torch.manual_seed(0)
cells, basis = C.grid({SIDE}, {SIDE}), C.GaussianBasis.on_grid(10, 10, variance={VARIANCE})
v = torch.randn({BATCH}, {SIDE * SIDE}, {CHANNELS}, requires_grad=True)
s = torch.randn({BATCH}, {SIDE * SIDE}, requires_grad=True)
C.ridge(cells, basis)
# Both sides pay for threads and libraries before the clock of memory starts.
small = torch.randn(2, {SIDE * SIDE}, 8, requires_grad=True)
for options in ({{}}, {{"alpha": 2}}, {{"components": 4}}):
    C.continuous_attention(small, torch.softmax(s.detach()[:2], -1), cells, basis, **options).context.sum().backward()
"""
DISCRETE = "(torch.softmax(s, -1).unsqueeze(-2) @ v).sum().backward()"


def main() -> None:
    """Time, memory, and `select_mixture` against a loop over examples."""
    # Memory first: a child process inherits the high-water mark of its parent, and timing makes that large.
    measured = memory()
    report("continuous", speed() + measured + selection())


def speed() -> list[Row]:
    torch.manual_seed(0)
    cells, basis = C.grid(SIDE, SIDE), C.GaussianBasis.on_grid(10, 10, variance=VARIANCE)
    v = torch.randn(BATCH, SIDE * SIDE, CHANNELS, requires_grad=True)
    s = torch.randn(BATCH, SIDE * SIDE, requires_grad=True)
    upstream = torch.randn(BATCH, CHANNELS)

    def discrete() -> None:
        v.grad = s.grad = None
        (torch.softmax(s, -1).unsqueeze(-2) @ v).squeeze(-2).backward(upstream)

    def continuous(options: dict) -> None:
        v.grad = s.grad = None
        weights = torch.softmax(s, -1)
        C.continuous_attention(v, weights, cells, basis, **options).context.backward(upstream)

    runs = {name: lambda options=options: continuous(options) for name, (options, _) in CONTESTANTS.items()}
    times = race({"discrete": discrete, **runs}, seconds=10)
    theirs = times["discrete"].median
    return [
        Row(
            f"{name}, forward and backward",
            "ms",
            times[name].median,
            "discrete softmax",
            theirs,
            f"at most {limit}x its time",
            times[name].median <= limit * theirs,
        )
        for name, (_, limit) in CONTESTANTS.items()
    ]


def memory() -> list[Row]:
    theirs = peak_memory(SETUP, DISCRETE)
    rows = []
    for name, (options, _) in CONTESTANTS.items():
        call = f"C.continuous_attention(v, torch.softmax(s, -1), cells, basis, **{options!r}).context.sum().backward()"
        ours = peak_memory(SETUP, call)
        promise = "at most 1.5x its memory"
        rows.append(Row(f"{name}, peak memory", "MB", ours, "discrete softmax", theirs, promise, ours <= 1.5 * theirs))
    return rows


def selection() -> list[Row]:
    torch.manual_seed(0)
    cells = C.grid(SIDE, SIDE)
    weights = torch.softmax(torch.randn(BATCH, SIDE * SIDE), -1)

    def loop() -> None:
        for w in weights:
            C.select_mixture(w, cells)

    times = race({"ours": lambda: C.select_mixture(weights, cells), "loop": loop}, seconds=5, least=3)
    ours, theirs = times["ours"].median, times["loop"].median
    kept = theirs >= 10 * ours
    return [Row("select_mixture, batch 64", "ms", ours, "a loop over examples", theirs, "at least 10x faster", kept)]
