"""How close to the machine's limit: the rates of memory and of products, measured here, and what a case needs of them.

A case must read and write some bytes and do some multiplications (each with its addition). The limit is the larger of
the two times: nothing that has to do them can be faster on this machine, though what stays in the caches may be.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

BANDWIDTH_BYTES = 1 << 27  # of one array: beyond the caches
PRODUCT_SIDE = 1536
FLOAT = 4


@dataclass(frozen=True)
class Machine:
    """Rates with the threads at hand, in float32.

    `bandwidth`: bytes read or written in a second by a copy between two large arrays.
    `products`: multiplications in a second, each with an addition, of a product of square matrices.
    """

    bandwidth: float
    products: float


@functools.lru_cache(maxsize=4)
def measured(threads: int) -> Machine:
    """The rates of this machine with so many threads, which torch must have; the best of some runs."""
    source = torch.ones(BANDWIDTH_BYTES // FLOAT)
    target, square = torch.empty_like(source), torch.randn(PRODUCT_SIDE, PRODUCT_SIDE)
    out = torch.empty_like(square)
    copy = _shortest(lambda: target.copy_(source))
    product = _shortest(lambda: torch.mm(square, square, out=out))
    return Machine(2 * BANDWIDTH_BYTES / copy, PRODUCT_SIDE**3 / product)


def machine() -> Machine:
    """The rates of this machine, measured once in a process for each number of threads."""
    return measured(torch.get_num_threads())


def limit(numbers: float = 0, multiplications: float = 0) -> float:
    """Milliseconds below which no program can be that does what is needed here.

    `numbers`: numbers of four bytes that must be read or written in memory; default 0.
    `multiplications`: that must be done, each with an addition; default 0.
    """
    rates = machine()
    return 1e3 * max(FLOAT * numbers / rates.bandwidth, multiplications / rates.products)


def _shortest(run: Callable[[], object], times: int = 7) -> float:
    """Seconds of the shortest of some runs after one."""
    run()
    found = []
    for _ in range(times):
        before = time.perf_counter()
        run()
        found.append(time.perf_counter() - before)
    return min(found)
