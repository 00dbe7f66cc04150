"""Every algorithm in order of preference, and the one that computes a call: the first that suits it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from regard.attention.algorithm import Algorithm, Plan
from regard.attention.associative import Associative
from regard.attention.blocks import Blocks
from regard.attention.call import Call
from regard.attention.direct import Direct
from regard.attention.fused import Fused
from regard.attention.fused_blocks import FusedBlocks
from regard.attention.sorted import Sorted
from regard.attention.sparse import Sparse
from regard.attention.sparse_triton import SparseOnGPU

ALGORITHMS: tuple[Algorithm, ...] = (
    Fused(),
    FusedBlocks(),
    Associative(),
    Sorted(),
    SparseOnGPU(),
    Sparse(),
    Direct(),
    Blocks(),
)


def context_of(call: Call) -> Tensor:
    """The context by the first algorithm that suits; by the next one if the values do not suit it."""
    if call.empty:
        return call.zeros()
    for algorithm in ALGORITHMS:
        if algorithm.suits(call) and (c := algorithm.compute(call)) is not None:
            return c
    raise _unsuited(call)


def plan_of(call: Call) -> Plan:
    """The cost of the first algorithm that suits, and what those before it lack."""
    reasons: list[str] = []
    for algorithm in ALGORITHMS:
        if algorithm.suits(call):
            plan = algorithm.cost(call)
            return replace(plan, how=", because ".join([plan.how, *reasons]))
        if (reason := algorithm.lacks(call)) is not None:
            reasons.append(reason)
    raise _unsuited(call)


def _unsuited(call: Call) -> NotImplementedError:
    return NotImplementedError(f"no algorithm suits {call}")
