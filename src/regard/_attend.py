"""Steps 1 to 3 together, and the choice of the exact algorithm that computes them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard import _check
from regard._algorithms import associative, batch_of, fused, sorted_mean, sorted_softmax
from regard._blocks import Cut, Held, Rows, in_blocks
from regard._range import finite_context, finite_parameters, fused_inputs
from regard._sparse import TooDenseError, attend_sparse, order, suits
from regard._torch import exporting
from regard.affinity import Affinity, Bilinear, Concatenation, Dot, Factored
from regard.maps.simplex import entmax, mean, softmax

BUDGET = 1 << 21  # numbers of a block of scores: what is larger is computed block by block

_USUAL = (Dot, Bilinear)

Algorithm = Literal["fused", "associative", "sorted", "sparse", "direct", "blocks", "fused blocks"]


class Solved(Protocol):
    """The result of a map that reports more than its weights."""

    @property
    def weights(self) -> Tensor:
        """Weights (..., Lq, Lk)."""


class Map(Protocol):
    """Step 2 (2.1) as a function: scores (..., Lq, Lk) and a mask to weights of the same shape, along the last axis.

    A map whose rows depend on each other has an attribute `couples_rows` that is True, and then gets all rows at once.

    >>> attend(torch.ones(1, 2), torch.ones(3, 2), torch.eye(3), map=lambda s, *, mask: (s == s).float() / 3)
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    def __call__(self, s: Tensor, *, mask: Tensor | None) -> Tensor | Solved:
        """Weights, or something that has them."""


@dataclass(frozen=True)
class Plan:
    """Which algorithm `attend` uses (4.2 to 4.7), its cost, and why. `rows` is the number of queries in a block.

    >>> x = torch.zeros(1, 4096, 8)
    >>> explain_attend(x, x, x, map=mean).algorithm
    'associative'
    """

    algorithm: Algorithm
    how: str
    time: str
    memory: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.how}; time {self.time}, memory {self.memory}"


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
        c = (sorted_softmax if _is_softmax(map) else sorted_mean)(q, k, v, affinity, mask)
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
    _check_shapes(q, k, None, affinity, mask)
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


def explain_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Plan:
    """Say which exact algorithm `attend` takes for these arguments, and its cost (docs/math.md, 4.2 to 4.6).

    >>> x = torch.zeros(1, 4096, 64)
    >>> print(explain_attend(x, x, x))
    fused: one scaled_dot_product_attention; time O(Lq Lk d), memory O((Lq + Lk) d)
    >>> from regard import sparsemax
    >>> print(explain_attend(x.double(), x.double(), x.double(), map=sparsemax))
    blocks: 512 queries at a time against all keys, computed again for the gradient; time O(Lq Lk d), memory O(512 Lk)
    """
    _check_shapes(q, k, v, affinity, mask)
    lq, lk, e, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    pairs = math.prod(batch_of(q, k, v)) * lq * lk
    by_keys = not causal and (mask is None or mask.dim() < 2 or mask.shape[-2] == 1)
    # An exported graph is for all sizes: it cannot choose by them.
    one_graph = exporting()
    if _is_softmax(map) and isinstance(affinity, Factored):
        masks = 1 if mask is None else math.prod(mask.shape[:-2])
        if one_graph or by_keys or (mask is None and lq == lk) or masks * lq * lk <= BUDGET:
            return Plan("fused", "one scaled_dot_product_attention", "O(Lq Lk d)", "O((Lq + Lk) d)")
        rows = max(1, BUDGET // (pairs // lq))
        how = f"scaled_dot_product_attention on {rows} queries at a time, because of the mask"
        return Plan("fused blocks", how, "O(Lq Lk d)", f"O({rows} Lk)", rows)
    exact = isinstance(affinity, Factored) and affinity.exact
    if map is mean and exact and by_keys and (lq + lk) * e * dv < lq * lk * (e + dv):
        return Plan("associative", "q (k' v) / n, scores are never formed", "O((Lq + Lk) d dv)", "O(d dv)")
    if (map is mean or _is_softmax(map)) and isinstance(affinity, Concatenation) and by_keys:
        return Plan("sorted", "sort the keys once, prefix sums, one look-up a query", "O(L log L + L dv)", "O(L dv)")
    if not one_graph and isinstance(affinity, Factored) and order(map) is not None and suits(q, k, v):
        how = "scores in the cache, of which only the keys with weight are kept"
        return Plan("sparse", how, "O(Lq Lk d)", "O((Lq + Lk) d + keys with weight)", _rows_in_blocks(pairs, lq))
    numbers = pairs * affinity.width(q, k)
    if one_graph or numbers <= BUDGET or _couples_rows(map):
        return Plan("direct", "scores, map, product with the values", "O(Lq Lk d)", "O(Lq Lk)")
    rows = max(1, BUDGET * lq // numbers)
    how = f"{rows} queries at a time against all keys, computed again for the gradient"
    return Plan("blocks", how, "O(Lq Lk d)", f"O({rows} Lk)", rows)


def _weights(q: Tensor, k: Tensor, affinity: Affinity, map: Map, mask: Tensor | None) -> Tensor:
    p = map(affinity.scores(q, k), mask=mask)
    return p if isinstance(p, Tensor) else p.weights


def _rows_in_blocks(pairs: int, queries: int) -> int:
    """How many queries a block has."""
    return max(1, BUDGET * queries // pairs)


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


def _is_softmax(map: Map) -> bool:
    if isinstance(map, functools.partial):
        plain = not map.args and set(map.keywords) <= {"alpha"}
        return plain and (map.func is softmax or (map.func is entmax and _is_one(map.keywords.get("alpha"))))
    return map is softmax


def _is_one(alpha: object) -> bool:
    return not isinstance(alpha, Tensor) and alpha == 1


def _couples_rows(map: Map) -> bool:
    """Whether the map has to see all rows at once: by its own word, or because a parameter differs between rows."""
    if isinstance(map, functools.partial):
        per_row = any(isinstance(x, Tensor) and x.dim() > 1 and x.shape[-2] > 1 for x in map.keywords.values())
        return per_row or _couples_rows(map.func)
    return bool(getattr(map, "couples_rows", False))


def _check_shapes(q: Tensor, k: Tensor, v: Tensor | None, affinity: Affinity, mask: Tensor | None) -> None:
    if not isinstance(affinity, Affinity):
        got = getattr(affinity, "__name__", type(affinity).__name__)
        _check.complain("affinity", got, "an Affinity object", "Make one, for example Dot().", TypeError)
    tensors = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    for name, x in tensors.items():
        _check.floating(name, x, min_dims=2)
        if x.dtype != q.dtype:
            _check.complain(name, x.dtype, f"the dtype of q, {q.dtype}", "Convert it with .to(q.dtype).", TypeError)
    if v is not None and v.shape[-2] != k.shape[-2]:
        _check.complain("v", f"{v.shape[-2]} values", f"one for each of the {k.shape[-2]} keys", "Check axis -2.")
    if k.shape[-2] == 0:
        _check.complain("k", "no keys", "at least one", "There is no distribution over nothing.")
    try:
        batch = batch_of(*tensors.values())
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
        _check.complain("q, k, v", shapes, "leading dimensions that broadcast", "Add axes of size 1 with unsqueeze.")
    if mask is not None:
        _check.boolean_mask(mask, torch.Size((*batch, q.shape[-2], k.shape[-2])), of="the scores")
