"""Steps 1 to 3 together, and the choice of the exact algorithm that computes them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard import _check
from regard._algorithms import associative, batch_of, fused, sorted_mean, sorted_softmax
from regard._blocks import Cut, Held, Rows, in_blocks
from regard._plan import Map, Plan, check_shapes, explain_attend, is_softmax
from regard._range import finite_context, finite_parameters, fused_inputs
from regard._sparse import TooDenseError, attend_sparse, order
from regard.affinity import Affinity, Bilinear, Concatenation, Dot, Factored
from regard.maps.simplex import softmax

_USUAL = (Dot, Bilinear)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Expectation of the values under the map of the scores: the context c (docs/math.md, 4.1).

    `q` (..., Lq, dq), `k` (..., Lk, dk), `v` (..., Lk, dv) to (..., Lq, dv); leading dimensions broadcast. `mask` is
    boolean, True where a key takes part, and broadcasts to (..., Lq, Lk): a mask of keys has shape (..., 1, Lk).
    With `causal` the last query sees every key, the one before it all but the last, and so on; it needs no mask
    in memory. `map` is one of regard's maps, `functools.partial` of one, or any callable that fits `Map`.

    The result is that of the obvious program (scores, map, product), to rounding; `explain_attend` says which
    algorithm computes it. Differentiable in q, k, v and in the parameters of the affinity and the map; twice too, but
    for the fused algorithm, whose kernel has no second derivative and says so. A query with no key left gets zeros,
    and zero gradients. Half precision is computed in float32.

    >>> q, k, v = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 3)
    >>> attend(q, k, v).shape
    torch.Size([2, 5, 3])
    >>> from functools import partial
    >>> from regard import entmax
    >>> attend(q, k, v, Dot(1.0), partial(entmax, alpha=1.5), mask=torch.ones(7, dtype=torch.bool)).shape
    torch.Size([2, 5, 3])
    """
    if map is softmax and mask is None and not causal and isinstance(affinity, _USUAL) and _plain(q, k, v):
        # The usual case, with little between it and the kernel: at a few hundred keys our own words would cost 30 %.
        given = fused_inputs(q, k, v, affinity)
        c = scaled_dot_product_attention(given.q, given.k, given.v, scale=given.scale)
        return (c if given.sums_fit else finite_context(c, v)).to(q.dtype)
    plan = explain_attend(q, k, v, affinity, map, mask, causal=causal)
    if 0 in (*batch_of(q, k, v), q.shape[-2], v.shape[-1]):
        return (q.sum() + k.sum() + v.sum()) * q.new_zeros(*batch_of(q, k, v), q.shape[-2], v.shape[-1])
    dtype = q.dtype
    if plan.algorithm in ("fused", "fused blocks") and isinstance(affinity, Factored):
        given = fused_inputs(q, k, v, affinity)
        rows = functools.partial(fused, scale=given.scale)
        if plan.rows is None:
            c = rows(given.q, given.k, given.v, mask, causal=causal)
        else:
            c = in_blocks(rows, given.q, given.k, given.v, mask, causal, plan.rows, Held.by())
        return (c if given.sums_fit else finite_context(c, v)).to(dtype)
    if isinstance(affinity, (Factored, Concatenation)):  # of others the scores are formed, and the map looks at them
        finite_parameters(affinity)
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check.finite(name, x)
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    if plan.algorithm == "associative" and isinstance(affinity, Factored):
        c = associative(q, k, v, affinity, mask)
    elif plan.algorithm == "sorted" and isinstance(affinity, Concatenation):
        c = (sorted_softmax if is_softmax(map) else sorted_mean)(q, k, v, affinity, mask)
    elif (sparse := _sparse(plan, q, k, v, affinity, map, mask, causal)) is not None:
        c = sparse
    else:
        held = Held.by(affinity, map)
        c = in_blocks(_rows_of(held), q, k, v, mask, causal, plan.rows, held)
    return finite_context(c, v).to(dtype)


def attention_weights(
    q: Tensor,
    k: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """The weights p themselves (docs/math.md, 4.1), (..., Lq, Lk); arguments as in `attend`, which needs less memory.

    >>> attention_weights(torch.zeros(2, 4), torch.zeros(2, 4), causal=True)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    check_shapes(q, k, None, affinity, mask)
    for name, x in (("q", q), ("k", k)):
        _check.finite(name, x)
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k = q.float(), k.float()
    if causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        allowed = allowed.tril(k.shape[-2] - q.shape[-2])
        mask = allowed if mask is None else mask & allowed
    return _weights(q, k, affinity, map, mask).to(dtype)


def _weights(q: Tensor, k: Tensor, affinity: Affinity, map: Map, mask: Tensor | None) -> Tensor:
    p = map(affinity.scores(q, k), mask=mask)
    return p if isinstance(p, Tensor) else p.weights


def _sparse(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, affinity: Affinity, map: Map, mask: Tensor | None, causal: bool
) -> Tensor | None:
    """The context by the sparse algorithm, or None if it is not planned or the weights turn out not to be sparse."""
    alpha = order(map)
    if plan.algorithm != "sparse" or alpha is None or not isinstance(affinity, Factored):
        return None

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _weights(q, k, Dot(1.0), map, mask) @ v

    cut = Cut(q.shape[-2], k.shape[-2], plan.rows or q.shape[-2], mask, causal)
    try:
        return attend_sparse(*affinity.factors(q, k), v, cut, alpha, rows)
    except TooDenseError:
        return None


def _rows_of(held: Held) -> Rows:
    """How a block of queries gets its context, given the tensors that the affinity and the map hold."""

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *tensors: Tensor) -> Tensor:
        affinity, map = held.rebuilt(tensors)
        return _weights(q, k, affinity, map, mask) @ v

    return rows


def _plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the tensors are (B, H, L, d) as the kernel likes them best."""
    if not isinstance(q, Tensor) or q.dim() != 4 or q.dtype != k.dtype or q.dtype != v.dtype:
        return False
    # One comparison in the usual case, self-attention.
    shape, other = q.shape, k.shape
    if v.shape != other or (shape != other and (shape[:2] != other[:2] or shape[3] != other[3])):
        return False
    unit = q.stride(3) == k.stride(3) == v.stride(3) == 1
    return unit and q.dtype.is_floating_point and 0 not in shape and other[2] > 0
