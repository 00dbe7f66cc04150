"""The associative algorithm: a mean of products is a product of sums (docs/math.md, 4.3)."""

from __future__ import annotations

from typing import cast, final

from torch import Tensor

from regard.affinity import Factored
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.call import Call
from regard.attention.masks import key_column
from regard.maps.mean import Mean


@final
class Associative(Algorithm):
    """Mean of a factored affinity: (q k') v = q (k' v)."""

    def suits(self, call: Call) -> bool:
        """Where the products are the scores, all queries see the same keys, and this order of products is cheaper."""
        exact = isinstance(call.affinity, Factored) and call.affinity.exact and call.without_extras
        if not (isinstance(call.map, Mean) and exact and call.same_for_all_queries):
            return False
        lq, lk, e, dv = call.queries, call.keys, call.q.shape[-1], call.v.shape[-1]
        return call.exporting or (lq + lk) * e * dv < lq * lk * (e + dv)

    def cost(self, call: Call) -> Plan:
        """Linear time."""
        return Plan("associative", "q (k' v) / n, scores are never formed", "O((Lq + Lk) d dv)", "O(d dv)")

    def compute(self, call: Call) -> Tensor:
        """Keys times values first."""
        call = call.finite()
        q, k = cast(Factored, call.affinity).factors(call.q, call.k)
        v, n = participants(call.v, call.mask)
        return call.result(q @ (k.mT @ v) / n)


def participants(v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | int]:
    """The values with zeros where a key is masked, and the number of keys that are not, at least one."""
    if mask is None:
        return v, v.shape[-2]
    keys = key_column(mask, v.shape[-2])
    return v.where(keys, 0.0), keys.sum(-2, keepdim=True).clamp(min=1)
