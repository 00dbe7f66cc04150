"""The fused algorithm: softmax in one kernel that forms no scores (docs/math.md, 4.2)."""

from __future__ import annotations

import math
from typing import cast, final

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.affinity import Affinity, Bilinear, Dot, Factored
from regard.attention import softmax_kernel
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.arguments import Map, batch_of, four_axes
from regard.attention.call import Call
from regard.attention.masks import with_causal
from regard.attention.query_blocks import fits_in_one
from regard.attention.range_checks import finite_context, fused_inputs
from regard.maps.entmax import Softmax, softmax


@final
class Fused(Algorithm):
    """Softmax of a factored affinity in one call of `scaled_dot_product_attention`."""

    def suits(self, call: Call) -> bool:
        """Where the kernel does not form all scores, or they are few."""
        if not isinstance(call.map, Softmax) or not isinstance(call.affinity, Factored):
            return False
        if call.exporting or softmax_kernel.suits_softmax(call):
            return True
        # For the gradient of a bias the kernel forms all scores; for dropout it does so on a CPU.
        learned = call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled()
        if learned or (call.dropout > 0 and call.q.is_cpu):
            return fits_in_one(call, call.pairs)
        if call.same_for_all_queries or (call.unmasked and call.diagonal == 0):
            return True
        masks = max(math.prod(x.shape[:-2]) if x is not None else 1 for x in (call.mask, call.bias))
        return fits_in_one(call, masks * call.queries * call.keys)

    def cost(self, call: Call) -> Plan:
        """Linear memory."""
        how = "scores in the cache" if softmax_kernel.suits_softmax(call) else "one scaled_dot_product_attention"
        return Plan("fused", how, "O(Lq Lk d)", "O((Lq + Lk) d)")

    def compute(self, call: Call) -> Tensor:
        """All queries at once."""
        bare = call.unmasked and call.diagonal is None and call.dropout == 0
        if bare and (usual := usual_softmax(call.q, call.k, call.v, call.affinity, call.map)) is not None:
            return usual
        call = call.promoted()
        if softmax_kernel.suits_softmax(call) and (c := softmax_kernel.softmax_context(call)) is not None:
            return c.to(call.dtype)
        inputs = fused_inputs(call.q, call.k, call.v, cast(Factored, call.affinity), call.bias)
        c = fused_softmax(
            inputs.q,
            inputs.k,
            inputs.v,
            call.mask,
            inputs.bias,
            scale=inputs.scale,
            diagonal=call.diagonal,
            dropout=call.dropout,
        )
        return c.to(call.dtype) if inputs.sums_fit else call.result(c)


def usual_softmax(q: Tensor, k: Tensor, v: Tensor, affinity: Affinity, map: Map) -> Tensor | None:
    """The usual case with little Python overhead, which otherwise would be 30 % at a few hundred keys.

    For calls without mask, bias and dropout that are not causal; None if it is not the usual case. Arguments as in
    `attend`.
    """
    # The factors of these affinities are as wide as the queries.
    if not isinstance(affinity, (Dot, Bilinear)) or not (map is softmax or type(map) is Softmax):
        return None
    if not _in_kernel_layout(q, k, v):
        return None
    if (cached := _in_cache(q, k, v, affinity)) is not None:
        return cached
    inputs = fused_inputs(q, k, v, affinity)
    c = scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, scale=inputs.scale)
    return (c if inputs.sums_fit else finite_context(c, v)).to(q.dtype)


def _in_cache(q: Tensor, k: Tensor, v: Tensor, affinity: Dot | Bilinear) -> Tensor | None:
    """The context by the kernel that keeps scores in the cache; None if it does not suit."""
    if not softmax_kernel.suits_bare(q, k, v):
        return None
    if isinstance(affinity, Bilinear):
        if q.dtype != torch.float32:  # factors are computed wider
            return None
        # The kernel finds what is not finite: a number that is not makes some product with it NaN or infinite too.
        first, k = affinity.factors(q, k)
        # The weight may have more axes than the queries, or be in a transform.
        if not (_in_kernel_layout(first, k, v) and softmax_kernel.in_reach(first, k, v)):
            return None
        q, affinity = first, Dot(1.0)
    elif type(affinity) is not Dot:  # as for other calls of the kernel
        return None
    return softmax_kernel.bare_context(q, k, v, affinity)


def _in_kernel_layout(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the tensors are (B, H, L, d) with unit last stride, the layout of the kernel."""
    if not isinstance(q, Tensor) or q.dim() != 4 or q.dtype != k.dtype or q.dtype != v.dtype:
        return False
    # One comparison in the usual case, self-attention.
    shape, other = q.shape, k.shape
    if v.shape != other or (shape != other and (shape[:2] != other[:2] or shape[3] != other[3])):
        return False
    unit = q.stride(3) == k.stride(3) == v.stride(3) == 1
    return unit and q.dtype.is_floating_point and 0 not in shape and other[2] > 0


def fused_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    diagonal: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax of `scale` times the inner products plus `bias`: one call that forms no scores (docs/math.md, 4.2).

    On a CPU `scaled_dot_product_attention` silently forms them when there is no head axis, when the last stride is not
    one, or when queries and values differ in width; so the tensors are reshaped and padded. Its result for a query
    whose keys are all masked is not specified: here such a query sees every key, and its context is then set to zero.

    `q`, `k`, `v`, `mask`, `bias`: as in `attend`, with at least two axes.
    `scale`: factor of the inner products.
    `diagonal`: query i sees the keys up to i + diagonal; default None, all.
    `dropout`: share of weights set to zero; default 0.
    """
    width, out_width = q.shape[-1], v.shape[-1]
    # One width for all; above 64 a multiple of 16, at which the kernel is 10 % faster.
    padded = max(width, out_width)
    padded = -(-padded // 16) * 16 if padded > 64 else padded
    if width < padded:
        q, k = pad(q, (0, padded - width)), pad(k, (0, padded - width))
    if out_width < padded:
        v = pad(v, (0, padded - out_width))
    batch = batch_of(q, k, v)
    q, k, v = (four_axes(x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:])) for x in (q, k, v))
    lq, lk = q.shape[-2], k.shape[-2]
    if diagonal is not None and (mask is not None or bias is not None or diagonal != 0):
        mask, diagonal = with_causal(mask, diagonal, lq, lk, q.device), None
    dead = None
    mask = None if mask is None else _pairs(mask, batch, lk)
    if bias is not None:
        bias = _pairs(bias, batch, lk)
        bias = bias if mask is None else torch.where(mask, bias, -torch.inf)
        dead = bias.detach().amax(-1, keepdim=True) == -torch.inf
        mask = bias.masked_fill(dead, 0.0)
    elif mask is not None:
        dead = ~mask.any(-1, keepdim=True)
        mask = mask | dead
    c = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=diagonal is not None, scale=scale
    )
    if dead is not None:
        c = c.masked_fill(dead, 0.0)
    if out_width < padded:
        c = c[..., :out_width]
    return c if len(batch) == 2 else c.reshape(*batch, lq, out_width)


def _pairs(x: Tensor, batch: torch.Size, keys: int) -> Tensor:
    """A mask or a bias that broadcasts to (*batch, Lq, Lk), as four axes."""
    x = x[(None,) * (len(batch) + 2 - x.dim())]
    return four_axes(x.expand(*(batch[:-1] if len(batch) > 2 else x.shape[:-3]), *x.shape[-3:-1], keys))
