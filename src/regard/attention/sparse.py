"""The sparse algorithm: only weights that are not zero are used (docs/math.md, 4.7).

Scores are formed in blocks that stay in the cache; of each row only its support is stored, a few keys with their
weights. The cost of the context and of the backward pass is then proportional to the size of the supports, not to the
number of pairs.
"""

from __future__ import annotations

import math
from typing import cast, final

import torch
from torch import Tensor

from regard import _check, native
from regard._torch import forward_mode
from regard.affinity import Dot, Factored, same_width
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.arguments import batch_of, four_axes
from regard.attention.call import Call
from regard.attention.query_blocks import QueryBlocks, rows_in_budget
from regard.attention.range_checks import finite_parameters
from regard.attention.sparse_function import NotFiniteError, SparseCase, computed_dtype, sparse_context
from regard.maps.entmax import Entmax, entmax_order
from regard.maps.entmax.kernel import suits as suits_kernel


@final
class Sparse(Algorithm):
    """Sparsemax and entmax of a factored affinity, by a kernel that stores the support of each row."""

    def suits(self, call: Call) -> bool:
        """Where the kernel supports the call; it has no dropout."""
        return call.dropout == 0 and _within_reach(call)

    def cost(self, call: Call) -> Plan:
        """Memory by the number of keys with weight."""
        how = "scores in the cache, of which only the keys with weight are kept"
        return Plan("sparse", how, "O(Lq Lk d)", "O((Lq + Lk) d + keys with weight)")

    def compute(self, call: Call) -> Tensor | None:
        """All heads in one kernel; None if a number is not finite or so large that scores may not be."""
        affinity, scale = cast(Factored, call.affinity), 1.0
        computed = computed_dtype(call.promoted_dtype)
        # The kernel reads half precision; factors of other affinities are computed first.
        stored = call.q.dtype if isinstance(affinity, Dot) and computed == torch.float32 else computed
        q, k, v = (x.to(stored) for x in (call.q, call.k, call.v))
        if isinstance(affinity, Dot):  # the kernel scales, so that no scaled queries are stored
            same_width(q, k)
            scale = 1 / math.sqrt(q.shape[-1]) if affinity.scale is None else affinity.scale
        else:
            finite_parameters(affinity)
            q, k = affinity.factors(q, k)
        batch = batch_of(q, k, v)  # that of the affinity's weights too
        q, k, v = (four_axes(x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:])) for x in (q, k, v))
        case = SparseCase(batch, QueryBlocks.of(call, rows_in_budget(call, call.pairs)), entmax_order(call.map), scale)
        alpha = call.map.alpha if isinstance(call.map, Entmax) and isinstance(call.map.alpha, Tensor) else None
        bias = None if call.bias is None else call.bias.to(computed)
        try:
            c = sparse_context(q, k, v, alpha, bias, case)
        except NotFiniteError:
            call.finite()  # names the argument, if it is one
            return None
        return (c if len(batch) == 2 else c.reshape(*batch, *c.shape[-2:])).to(call.dtype)

    def lacks(self, call: Call) -> str | None:
        """The dropout, which the kernel does not support."""
        return "the sparse kernel has no dropout" if call.dropout > 0 and _within_reach(call) else None


def _within_reach(call: Call) -> bool:
    """Whether the kernel supports map, affinity and tensors: on a CPU, in no transform."""
    if call.exporting or not isinstance(call.affinity, Factored) or not _known_order(call):
        return False
    tensors = [call.q, call.k, call.v] if call.bias is None else [call.q, call.k, call.v, call.bias]
    return call.q.shape[-1] > 0 and _check.readable(call.q) and not forward_mode() and native.reachable(*tensors)


def _known_order(call: Call) -> bool:
    """Whether the map is entmax with alphas that the kernel supports: one number, or one for each head."""
    if not isinstance(call.map, Entmax) or not isinstance(alpha := call.map.alpha, Tensor):
        order = entmax_order(call.map)
        return order is not None and suits_kernel(order)
    lead, scores = alpha.shape[:-2], (*call.batch, 1, 1)
    fits = alpha.is_floating_point() and alpha.dim() <= len(scores) and alpha.shape[-2:].numel() == 1
    fits = fits and all(n in (1, m) for n, m in zip(reversed(lead), reversed(call.batch), strict=False))
    return fits and _check.readable(alpha) and native.reachable(alpha) and suits_kernel(alpha)
