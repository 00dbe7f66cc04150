"""The warps and stages of a launch: by the tables, or with REGARD_TRITON=tune those that Triton measures as fastest."""

from __future__ import annotations

import functools
from typing import Any

import torch

from regard.gpu import _choose

HOLDS_FOR = {"n", "Lq", "Lk", "rows", "columns", "count"}  # arguments that a measurement holds for
STAGES = (1, 2, 3)
MOST_THREADS = 1024


def tuned(kernel: Any) -> Any:
    """The kernel, or one that is measured at its first call of each size.

    Every kernel writes all of its results and changes nothing that it reads, so that it may run any number of times.
    Tiles stay as they are: memory is given out by them.
    """
    return _Measured(kernel) if _choose.SETTING == "tune" else kernel


class _Measured:
    """A kernel whose `num_warps` and `num_stages` are where the search begins."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, num_warps: int, num_stages: int = STAGES[-1], **options: Any) -> Any:
            return _autotuner(self.kernel, num_warps, num_stages)[grid](*args, **options)

        return run


@functools.cache
def _autotuner(kernel: Any, warps: int, stages: int) -> Any:
    import triton

    lanes = 64 if torch.version.hip else 32
    counts = [n for n in (warps, warps // 2, 2 * warps) if 1 <= n <= MOST_THREADS // lanes]
    # That of the table comes first, and stays where others are as fast.
    choices = dict.fromkeys([(warps, stages), *((n, m) for n in counts for m in STAGES)])
    key = [x.name for x in kernel.params if x.is_constexpr or x.name in HOLDS_FOR]
    configs = [triton.Config({}, num_warps=n, num_stages=m) for n, m in choices]
    return triton.autotune(configs, key)(kernel)
