"""TVmax with the native kernel against plain PyTorch, and against torch.softmax of as many scores.

Other scores and prices are harder: with gamma = 0.5 regions of half the grid have to be found.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

import regard
from benchmarks import limits
from benchmarks.harness import Row, on_plain_path, race, report
from benchmarks.maps import WHAT, timed

GAMMA, LARGE_GAMMA = 0.1, 0.5
MOST = 20  # times the time of softmax, on grids of the largest side
GRIDS, SIDES = (64, 1024, 4096), (7, 14)


def main() -> None:
    print(f"native kernels: {regard.native_kernels()}")
    torch.manual_seed(0)
    report("structured", rows())


def rows() -> Iterator[Row]:
    ours = partial(regard.tvmax, gamma=GAMMA)
    for side in SIDES:
        for grids in GRIDS:
            s = torch.randn(grids, side, side)
            flat = s.flatten(1)
            for what in WHAT:
                mine = timed(ours, what, s)
                contestants: dict[str, Callable[[], object]] = {
                    "ours": mine,
                    "plain": on_plain_path(mine),
                    "softmax": timed(partial(torch.softmax, dim=-1), what, flat),
                }
                t = {name: timing.median for name, timing in race(contestants, seconds=1.5).items()}
                case = f"tvmax, gamma = {GAMMA}, {grids} grids of {side} x {side}, {what}"
                least = limits.limit(numbers=s.numel() * (2 if what == "forward" else 5))
                yield Row(case, "ms", t["ours"], "without the kernel", t["plain"], limit=least)
                kept = t["ours"] <= MOST * t["softmax"]
                promise = (f"at most {MOST} times its time", kept) if side == max(SIDES) else ("", None)
                yield Row(case, "ms", t["ours"], "torch.softmax", t["softmax"], *promise, least)
    s = torch.randn(1024, max(SIDES), max(SIDES))
    mine = timed(partial(regard.tvmax, gamma=LARGE_GAMMA), "forward", s)
    t = {name: x.median for name, x in race({"ours": mine, "plain": on_plain_path(mine)}, seconds=3).items()}
    case = f"tvmax, gamma = {LARGE_GAMMA}, 1024 grids of {max(SIDES)} x {max(SIDES)}, forward"
    yield Row(case, "ms", t["ours"], "without the kernel", t["plain"])
