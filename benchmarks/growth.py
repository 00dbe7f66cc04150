"""How time and memory of each pair of `attend` grow with the number of queries and keys, forward and backward.

The figure is the exponent b of a fit a N^b over three doublings (time) or two (memory), against the promised one.
Time is CPU time on one thread, because lengths are measured one after another and other load must not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

import torch

import regard
from benchmarks.harness import Row, peak_memory, race, report
from benchmarks.memory import SETUP

WIDTH = 64
LENGTHS, SHORT = (2048, 4096, 8192, 16384), (256, 512, 1024, 2048)
HEAVY = (1024, 2048, 4096, 8192)
SLACK = 0.25  # tolerance of the fitted exponent: caches, and the overhead of a call

MAPS = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "entmax 1.5": regard.entmax,
    "entmax 1.3": partial(regard.entmax, alpha=1.3),
    "mean": regard.mean,
}


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    report("growth", rows())
    torch.set_num_threads(threads)


def exponent(sizes: tuple[int, ...], figures: list[float]) -> float:
    """The slope of the least squares line through the logarithms."""
    x, y = [math.log(n) for n in sizes], [math.log(f) for f in figures]
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def affinities() -> dict[str, regard.Affinity]:
    torch.manual_seed(0)
    w = torch.randn(WIDTH) / 8
    return {
        "dot": regard.Dot(),
        "bilinear": regard.Bilinear(torch.randn(WIDTH, WIDTH) / WIDTH),
        "concatenation": regard.Concatenation(w, w),
        "additive": regard.Additive(w),
    }


def rows() -> Iterator[Row]:
    for name, affinity in affinities().items():
        for map_name, map_ in MAPS.items():
            linear = (name in ("dot", "bilinear") and map_name == "mean") or (
                name == "concatenation" and map_name in ("mean", "softmax")
            )
            sizes = LENGTHS if linear else SHORT if name == "additive" else HEAVY
            promised = 1.0 if linear else 2.0
            times = [seconds(n, affinity, map_) for n in sizes]
            fitted = exponent(sizes, times)
            case, span = f"{name} x {map_name}", f"{sizes[0]} to {sizes[-1]}"
            law = "at most N (log N)" if linear else "at most N^2"
            yield Row(f"{case}, time, N = {span}", "", fitted, "promised", promised, law, fitted <= promised + SLACK)
            lengths = (4096, 8192, 16384) if linear else (1024, 2048, 4096)
            if name != "additive":
                used = [memory(n, name, map_name) for n in lengths]
                fitted = exponent(lengths, used)
                yield Row(
                    f"{case}, memory, N = {lengths[0]} to {lengths[-1]}, {used[-1]:.0f} MB at the end",
                    "",
                    fitted,
                    "promised",
                    1.0,
                    "at most N",
                    fitted <= 1 + SLACK,
                )


def seconds(n: int, affinity: regard.Affinity, map_: object) -> float:
    """Median CPU time of forward and backward of one head, in milliseconds."""
    leaves = [torch.randn(1, n, WIDTH, requires_grad=True) for _ in range(3)]
    run = {"": lambda: regard.attend(*leaves, affinity, map_).sum().backward()}
    return race(run, seconds=0.3, least=3, clock=time.process_time)[""].median


def memory(n: int, affinity: str, map_name: str) -> float:
    """MB above the inputs and a call on few tokens."""
    setup = SETUP.format(affinity=affinity, map=map_name, n=n, queries=n)
    return max(1.0, peak_memory(setup, "regard.attend(q, k, v, affinity, map).sum().backward()"))
