"""TVmax with the native kernel against plain PyTorch, and against torch.softmax of as many scores."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

import regard
from benchmarks.harness import Row, on_plain_path, race, report
from benchmarks.maps import WHAT, timed

GAMMA = 0.1
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
                yield Row(case, "ms", t["ours"], "without the kernel", t["plain"])
                yield Row(case, "ms", t["ours"], "torch.softmax", t["softmax"])
