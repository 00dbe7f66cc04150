"""Steps 1 to 3 together, and the choice of the exact algorithm that computes them."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard import _check
from regard._algorithms import associative, batch_of, fused, sorted_mean, sorted_softmax
from regard._blocks import Cut, Held, Rows, in_blocks
from regard._drawn import dropped
from regard._groups import Groups
from regard._plan import Causal, Map, check_shapes, diagonal_of, explain_attend
from regard._range import finite_context, finite_parameters, fused_inputs
from regard._sparse import TooDenseError, attend_sparse, order
from regard.affinity import Affinity, Bilinear, Concatenation, Dot, Factored
from regard.maps.entmax import Softmax, softmax
from regard.maps.spelling import as_map

_USUAL = (Dot, Bilinear)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: Causal = False,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Expectation of the values under the map of the scores: the context c (docs/math.md, 4.1).

    `q` (..., Lq, dq), `k` (..., Lk, dk), `v` (..., Lk, dv) to (..., Lq, dv); leading dimensions broadcast. `mask` is
    boolean, True where a key takes part, and broadcasts to (..., Lq, Lk): a mask of keys has shape (..., 1, Lk).
    `bias` is floating-point, broadcasts to (..., Lq, Lk), and is added to the scores (1.5): -inf leaves a key out, any
    other number is a number, however low. `map` is one of regard's maps, `functools.partial` of one, or any callable
    that fits `Map`. The factor of the scores is the affinity's: `Dot(scale)`.

    With `causal` the last query sees every key, the one before it all but the last, and so on; it needs no mask in
    memory. That is "lower-right", as True is; "upper-left", which is `is_causal` of torch, lets the first query see
    the first key, the next one two, and so on. They differ where Lq and Lk do.

    `dropout_p` is the share of weights that are set to zero, here and now, while the others are scaled up: pass zero
    outside of training. With `enable_gqa`, `q` has a multiple of the heads (axis -3) of `k` and `v`, and those in a row
    share one; keys and values are copied for them only where the affinity or the map holds tensors of its own.

    The result is that of the obvious program (scores, map, product), to rounding; `explain_attend` says which
    algorithm computes it. Differentiable in q, k, v, the bias and the parameters of the affinity and the map; twice
    too, but for the fused algorithm, whose kernel has no second derivative and says so. A query with no key left gets
    zeros, and zero gradients. Half precision is computed in float32; a bias of a wider dtype makes it that one.

    >>> q, k, v = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 3)
    >>> attend(q, k, v).shape
    torch.Size([2, 5, 3])
    >>> from functools import partial
    >>> from regard import entmax
    >>> attend(q, k, v, Dot(1.0), partial(entmax, alpha=1.5), mask=torch.ones(7, dtype=torch.bool)).shape
    torch.Size([2, 5, 3])
    >>> attend(q, k, v, bias=-torch.arange(7.0), causal="upper-left").shape  # nearer keys are preferred
    torch.Size([2, 5, 3])
    """
    alone = mask is None and bias is None and not causal and dropout_p == 0
    if alone and (map is softmax or type(map) is Softmax) and isinstance(affinity, _USUAL) and _plain(q, k, v):
        # The usual case, with little between it and the kernel: at a few hundred keys our own words would cost 30 %.
        given = fused_inputs(q, k, v, affinity)
        c = scaled_dot_product_attention(given.q, given.k, given.v, scale=given.scale)
        return (c if given.sums_fit else finite_context(c, v)).to(q.dtype)
    map = as_map(map)
    how: dict[str, Any] = {"causal": causal, "dropout_p": dropout_p}
    plan = explain_attend(q, k, v, affinity, map, mask, bias=bias, enable_gqa=enable_gqa, **how)
    diagonal = diagonal_of(causal, q.shape[-2], k.shape[-2])
    if enable_gqa and (groups := Groups.of(q, k, v, mask, bias, diagonal, affinity, map)) is not None:
        return groups.joined(
            [attend(p.q, p.k, cast(Tensor, p.v), affinity, map, p.mask, bias=p.bias, **how) for p in groups.parts]
        )
    if 0 in (*batch_of(q, k, v), q.shape[-2], v.shape[-1]):
        return (q.sum() + k.sum() + v.sum()) * q.new_zeros(*batch_of(q, k, v), q.shape[-2], v.shape[-1])
    dtype = q.dtype
    if bias is not None:
        bias = bias[(None,) * max(0, 2 - bias.dim())]
        q, k, v, bias = (x.to(torch.promote_types(dtype, bias.dtype)) for x in (q, k, v, bias))
    cut = Cut(q.shape[-2], k.shape[-2], plan.rows, mask, diagonal)
    if plan.algorithm in ("fused", "fused blocks") and isinstance(affinity, Factored):
        given = fused_inputs(q, k, v, affinity, bias)
        rows = functools.partial(fused, scale=given.scale)
        if plan.rows is None:
            c = rows(given.q, given.k, given.v, mask, given.bias, diagonal=diagonal, dropout=dropout_p)
        else:
            c = in_blocks(rows, given.q, given.k, given.v, given.bias, cut, Held.by())
        return (c if given.sums_fit else finite_context(c, v)).to(dtype)
    if isinstance(affinity, (Factored, Concatenation)):  # of others the scores are formed, and the map looks at them
        finite_parameters(affinity)
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check.finite(name, x)
    if bias is not None:
        _check.below_infinity("bias", bias)
    if q.dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
        bias = None if bias is None else bias.float()
    if plan.algorithm == "associative" and isinstance(affinity, Factored):
        c = associative(q, k, v, affinity, mask)
    elif plan.algorithm == "sorted" and isinstance(affinity, Concatenation):
        c = (sorted_softmax if isinstance(map, Softmax) else sorted_mean)(q, k, v, affinity, mask)
    elif plan.algorithm == "sparse" and (sparse := _sparse(q, k, v, affinity, map, cut)) is not None:
        c = sparse
    else:
        held = Held.by(affinity, map)
        c = in_blocks(_rows_of(held, dropout_p), q, k, v, bias, cut, held, random=dropout_p > 0)
    return finite_context(c, v).to(dtype)


def attention_weights(
    q: Tensor,
    k: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: Causal = False,
    bias: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights p themselves (docs/math.md, 4.1), (..., Lq, Lk); arguments as in `attend`, which needs less memory.

    >>> attention_weights(torch.zeros(2, 4), torch.zeros(2, 4), causal=True)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    check_shapes(q, k, None, affinity, mask, bias, enable_gqa)
    map = as_map(map)
    diagonal = diagonal_of(causal, q.shape[-2], k.shape[-2])
    if enable_gqa and (groups := Groups.of(q, k, None, mask, bias, diagonal, affinity, map)) is not None:
        parts = groups.parts
        return groups.joined(
            [attention_weights(p.q, p.k, affinity, map, p.mask, causal=causal, bias=p.bias) for p in parts]
        )
    for name, x in (("q", q), ("k", k)):
        _check.finite(name, x)
    dtype = wide = q.dtype
    if bias is not None:
        _check.below_infinity("bias", bias)
        wide = torch.promote_types(dtype, bias.dtype)
    wide = torch.float32 if wide in (torch.float16, torch.bfloat16) else wide
    q, k, bias = q.to(wide), k.to(wide), None if bias is None else bias.to(wide)
    _, _, _, mask, bias = Cut(q.shape[-2], k.shape[-2], None, mask, diagonal).whole(q, k, k, bias)
    return _weights(q, k, affinity, map, mask, bias).to(dtype)


def _weights(
    q: Tensor, k: Tensor, affinity: Affinity, map: Map, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    s = affinity.scores(q, k)
    p = map(s if bias is None else s + bias, mask=mask)
    return p if isinstance(p, Tensor) else p.weights


def _sparse(q: Tensor, k: Tensor, v: Tensor, affinity: Affinity, map: Map, cut: Cut) -> Tensor | None:
    """The context by the sparse algorithm, or None if the weights turn out not to be sparse."""
    alpha = order(map)
    if alpha is None or not isinstance(affinity, Factored):
        return None

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: None) -> Tensor:
        return _weights(q, k, Dot(1.0), map, mask) @ v

    try:
        return attend_sparse(*affinity.factors(q, k), v, cut, alpha, rows)
    except TooDenseError:
        return None


def _rows_of(held: Held, dropout: float) -> Rows:
    """How a block of queries gets its context, given the tensors that the affinity and the map hold."""

    def rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, *tensors: Tensor) -> Tensor:
        affinity, map = held.rebuilt(tensors)
        return dropped(_weights(q, k, affinity, map, mask, bias), dropout) @ v

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
