"""The direct algorithm, the obvious program: all scores, the map, the product with the values (docs/math.md, 4.1)."""

from __future__ import annotations

from typing import final

from torch import Tensor

from regard.attention.algorithm import Algorithm, Plan
from regard.attention.call import Call
from regard.attention.query_blocks import fits_in_one
from regard.attention.random_state import with_dropout
from regard.attention.weights import weights_of


@final
class Direct(Algorithm):
    """All scores at once. It can compute every call."""

    def suits(self, call: Call) -> bool:
        """Where the scores are few, or needed all at once."""
        return call.exporting or fits_in_one(call, call.numbers) or call.couples_rows

    def cost(self, call: Call) -> Plan:
        """The memory of all scores."""
        return Plan("direct", "scores, map, product with the values", "O(Lq Lk d)", "O(Lq Lk)")

    def compute(self, call: Call) -> Tensor:
        """The three steps, one after the other."""
        call = call.finite()
        p = weights_of(call.q, call.k, call.affinity, call.map, call.full_mask, call.bias)
        return call.result(with_dropout(p, call.dropout) @ call.v)
