"""The direct algorithm on blocks of queries, each computed again for the gradient (docs/math.md, 4.6)."""

from __future__ import annotations

from typing import final

from torch import Tensor

from regard.attention.algorithm import Algorithm, Plan
from regard.attention.call import Call
from regard.attention.checkpointing import Rows, in_blocks
from regard.attention.parameters import Parameters
from regard.attention.query_blocks import QueryBlocks, rows_in_budget
from regard.attention.random_state import with_dropout
from regard.attention.weights import weights_of


@final
class Blocks(Algorithm):
    """Some queries at a time against all keys."""

    def suits(self, call: Call) -> bool:
        """Where rows are independent, and no graph for all sizes is exported."""
        return not call.exporting and not call.couples_rows

    def cost(self, call: Call) -> Plan:
        """The memory of one block."""
        rows = rows_in_budget(call, call.numbers)
        how = f"{rows} queries at a time against all keys, computed again for the gradient"
        return Plan("blocks", how, "O(Lq Lk d)", f"O({rows} Lk)", rows)

    def compute(self, call: Call) -> Tensor:
        """One block after the other."""
        rows = rows_in_budget(call, call.numbers)
        call = call.finite()
        parameters, blocks = Parameters.of(call.affinity, call.map), QueryBlocks.of(call, rows)
        context = _rows_of(parameters, call.dropout)
        c = in_blocks(context, call.q, call.k, call.v, call.bias, blocks, parameters, random=call.dropout > 0)
        return call.result(c)


def _rows_of(parameters: Parameters, dropout: float) -> Rows:
    """The function from a block of queries, and the tensors of affinity and map, to its context."""

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, *tensors: Tensor) -> Tensor:
        affinity, map = parameters.rebuilt(tensors)
        return with_dropout(weights_of(q, k, affinity, map, mask, bias), dropout) @ v

    return rows
