"""The sparse algorithm on GPUs: Triton kernels that skip tiles of keys without weight (docs/math.md, 4.7)."""

from __future__ import annotations

import math
from typing import cast, final

import torch
from torch import Tensor

from regard import _check, gpu
from regard._torch import forward_mode, transforming
from regard.affinity import Dot, Factored, same_width
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.arguments import batch_of
from regard.attention.call import Call
from regard.attention.range_checks import finite_parameters
from regard.attention.triton_operator import attend_triton
from regard.gpu.attention import MOST_HEADS, WIDEST
from regard.maps.entmax import Entmax, entmax_order


@final
class SparseOnGPU(Algorithm):
    """Sparsemax and entmax of a factored affinity by Triton kernels, whose weights are never in memory."""

    def suits(self, call: Call) -> bool:
        """Where the kernels support the call; they have no dropout."""
        return _lacking(call) is None and _taken(call)

    def cost(self, call: Call) -> Plan:
        """Tiles without weight cost nothing after the first pass."""
        how = "Triton kernels, one forward and two backward, that skip tiles of keys without weight"
        return Plan("sparse triton", how, "O(Lq Lk d)", "O((Lq + Lk) d)")

    def compute(self, call: Call) -> Tensor | None:
        """All heads in one kernel; None if the context is not finite, where values are checked."""
        q, k, v = call.q, call.k, call.v
        affinity, scale = cast(Factored, call.affinity), 1.0
        if isinstance(affinity, Dot):
            same_width(q, k)
            scale = 1 / math.sqrt(q.shape[-1]) if affinity.scale is None else affinity.scale
        else:
            finite_parameters(affinity)
            q, k, v = q.float(), k.float(), v.float()
            q, k = affinity.factors(q, k)
        batch = batch_of(q, k, v)
        lead = math.prod(batch[:-1]), batch[-1] if batch else 1
        q, k, v = (x.expand(*batch, *x.shape[-2:]).reshape(*lead, *x.shape[-2:]) for x in (q, k, v))
        mask, bias = (_of_heads(x, batch, lead) for x in (call.mask, call.bias))
        alphas, number = None, entmax_order(call.map) or 0.0
        if isinstance(call.map, Entmax) and isinstance(call.map.alpha, Tensor):
            alphas = _of_heads(call.map.alpha, batch, lead)
            alphas = None if alphas is None else alphas[..., 0, 0]
        diagonal = call.keys if call.diagonal is None else call.diagonal
        c: Tensor = attend_triton(q, k, v, mask, bias, alphas, number, scale, diagonal)[0]
        c = c.reshape(*batch, *c.shape[-2:])
        if _check.values_checked(c) and not bool(c.detach().isfinite().all()):
            call.finite()  # names the argument, if it is one
            return None
        return c.to(call.dtype)

    def lacks(self, call: Call) -> str | None:
        """The dropout, which the kernels do not have."""
        missing = _lacking(call)
        return None if missing is None or not _taken(call) else f"the sparse kernel has no {missing}"


def _of_heads(x: Tensor | None, batch: torch.Size, lead: tuple[int, int]) -> Tensor | None:
    """A tensor that broadcasts to (*batch, ., .) as one of four axes that broadcasts to (*lead, ., .)."""
    if x is None:
        return None
    x = x[(None,) * max(0, 2 - x.dim())]
    if x.dim() <= 3 or len(batch) == 2:
        return x[(None,) * (4 - x.dim())]
    return x.expand(*batch, *x.shape[-2:]).reshape(*lead, *x.shape[-2:])


def _lacking(call: Call) -> str | None:
    """What the kernels lack of that which is asked for beside map and affinity."""
    return "dropout" if call.dropout > 0 else None


def _taken(call: Call) -> bool:
    """Whether map, affinity, widths and tensors are ones that the kernels have."""
    if call.exporting or not isinstance(call.affinity, Factored) or call.empty:
        return False
    tensors = [call.q, call.k, call.v] if call.bias is None else [call.q, call.k, call.v, call.bias]
    if math.prod(call.batch) > MOST_HEADS:
        return False
    if not gpu.usable(*tensors) or (not torch.compiler.is_compiling() and (transforming() or forward_mode())):
        return False
    # Factors of other affinities are in float32, and up to twice as wide as what they are made of, and a little more.
    dot = isinstance(call.affinity, Dot)
    widest = WIDEST[call.q.dtype if dot else torch.float32]
    return (
        0 < call.q.shape[-1] <= (widest if dot else widest // 2 - 2)
        and call.v.shape[-1] <= widest
        and _known_alpha(call)
    )


def _known_alpha(call: Call) -> bool:
    """Whether the map is entmax with a number above 1 up to 2, or a tensor with one for each head.

    The values of a tensor are read only where values are checked; an alpha that is not in (0, 2] gives NaN.
    """
    if not isinstance(call.map, Entmax) or not isinstance(alpha := call.map.alpha, Tensor):
        order = entmax_order(call.map)
        return order is not None and 1 < order <= 2
    if not gpu.usable(alpha) or alpha.shape[-2:].numel() != 1 or alpha.dim() > len(call.batch) + 2:
        return False
    fits = all(n in (1, m) for n, m in zip(reversed(alpha.shape[:-2]), reversed(call.batch), strict=False))
    return fits and (not _check.values_checked(alpha) or bool(((alpha > 0) & (alpha <= 2)).all()))
