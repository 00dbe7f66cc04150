"""The fused algorithm on blocks of queries, for masks and biases so large that its kernel would form all scores."""

from __future__ import annotations

import functools
from typing import cast, final

from torch import Tensor

from regard.affinity import Factored
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.call import Call
from regard.attention.checkpointing import in_blocks
from regard.attention.fused import fused_softmax
from regard.attention.parameters import Parameters
from regard.attention.query_blocks import QueryBlocks, rows_in_budget
from regard.attention.range_checks import fused_inputs
from regard.maps.entmax import Softmax


@final
class FusedBlocks(Algorithm):
    """Softmax of a factored affinity, some queries at a time (docs/math.md, 4.2 and 4.6)."""

    def suits(self, call: Call) -> bool:
        """Without dropout, whose random numbers the kernel would not draw again."""
        factored = isinstance(call.map, Softmax) and isinstance(call.affinity, Factored)
        return factored and call.dropout == 0 and not call.exporting

    def cost(self, call: Call) -> Plan:
        """The memory of one block."""
        rows = rows_in_budget(call, call.pairs)
        why = "mask" if call.bias is None else "bias"
        how = f"scaled_dot_product_attention on {rows} queries at a time, because of the {why}"
        return Plan("fused blocks", how, "O(Lq Lk d)", f"O({rows} Lk)", rows)

    def compute(self, call: Call) -> Tensor:
        """One block after the other."""
        call = call.promoted()
        inputs = fused_inputs(call.q, call.k, call.v, cast(Factored, call.affinity), call.bias)
        rows = functools.partial(fused_softmax, scale=inputs.scale)
        blocks = QueryBlocks.of(call, rows_in_budget(call, call.pairs))
        c = in_blocks(rows, inputs.q, inputs.k, inputs.v, inputs.bias, blocks, Parameters.of())
        return c.to(call.dtype) if inputs.sums_fit else call.result(c)
