"""Which exact algorithm `attend` takes for its arguments, and what that costs (docs/math.md, 4.2 to 4.7)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from regard import _check
from regard._algorithms import batch_of
from regard._groups import Groups, couples_rows, same_for_all_queries, same_groups
from regard._sparse import order, suits
from regard._torch import exporting
from regard.affinity import Affinity, Concatenation, Dot, Factored
from regard.maps.entmax import Softmax, softmax
from regard.maps.mean import Mean
from regard.maps.spelling import as_map

BUDGET = 1 << 21  # numbers of a block of scores: what is larger is computed block by block

#: True is "lower-right": the last query sees all keys. "upper-left": the first query sees the first key alone.
Causal = bool | Literal["upper-left", "lower-right"]

Algorithm = Literal["fused", "associative", "sorted", "sparse", "direct", "blocks", "fused blocks"]


class Solved(Protocol):
    """The result of a map that reports more than its weights."""

    @property
    def weights(self) -> Tensor:
        """Weights (..., Lq, Lk)."""


class Map(Protocol):
    """Step 2 (2.1) as a function: scores (..., Lq, Lk) and a mask to weights of the same shape, along the last axis.

    A map whose rows depend on each other has an attribute `couples_rows` that is True, and then gets all rows at once.

    >>> from regard import attend
    >>> attend(torch.ones(1, 2), torch.ones(3, 2), torch.eye(3), map=lambda s, *, mask: (s == s).float() / 3)
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    def __call__(self, s: Tensor, *, mask: Tensor | None) -> Tensor | Solved:
        """Weights, or something that has them."""


@dataclass(frozen=True)
class Plan:
    """Which algorithm `attend` uses (4.2 to 4.7), its cost, and why. `rows` is the number of queries in a block.

    >>> x = torch.zeros(1, 4096, 8)
    >>> explain_attend(x, x, x, map="mean").algorithm
    'associative'
    """

    algorithm: Algorithm
    how: str
    time: str
    memory: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.how}; time {self.time}, memory {self.memory}"


def explain_attend(
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
) -> Plan:
    """Say which exact algorithm `attend` takes for these arguments, and its cost (docs/math.md, 4.2 to 4.6).

    >>> x = torch.zeros(1, 4096, 64)
    >>> print(explain_attend(x, x, x))
    fused: one scaled_dot_product_attention; time O(Lq Lk d), memory O((Lq + Lk) d)
    >>> from regard import sparsemax
    >>> print(explain_attend(x.double(), x.double(), x.double(), map=sparsemax))
    blocks: 512 queries at a time against all keys, computed again for the gradient; time O(Lq Lk d), memory O(512 Lk)
    """
    check_shapes(q, k, v, affinity, mask, bias, enable_gqa)
    map = as_map(map)
    dropout = _check.share("dropout_p", dropout_p)
    diagonal = diagonal_of(causal, q.shape[-2], k.shape[-2])
    if enable_gqa and (groups := Groups.of(q, k, v, mask, bias, diagonal, affinity, map)) is not None:
        p = groups.parts[0]
        plan = _choose(p.q, p.k, v if p.v is None else p.v, affinity, map, p.mask, diagonal, p.bias, dropout)
        return replace(plan, how=f"{plan.how}, {groups.how}")
    return _choose(q, k, v, affinity, map, mask, diagonal, bias, dropout)


def _choose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    affinity: Affinity,
    map: Map,
    mask: Tensor | None,
    diagonal: int | None,
    bias: Tensor | None,
    dropout: float,
) -> Plan:
    lq, lk, e, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    pairs = math.prod(batch_of(q, k, v)) * lq * lk
    by_keys = diagonal is None and same_for_all_queries(mask) and same_for_all_queries(bias)
    # An exported graph is for all sizes: it cannot choose by them.
    one_graph = exporting()
    if isinstance(map, Softmax) and isinstance(affinity, Factored):
        # For the gradient of a bias the kernel forms all scores; for dropout it does so on a CPU.
        learned = bias is not None and bias.requires_grad and torch.is_grad_enabled()
        if learned or (dropout > 0 and q.is_cpu):
            in_one = pairs <= BUDGET
        else:
            masks = max(math.prod(x.shape[:-2]) if x is not None else 1 for x in (mask, bias))
            unmasked = mask is None and bias is None and diagonal == 0
            in_one = by_keys or unmasked or masks * lq * lk <= BUDGET
        if one_graph or in_one:
            return Plan("fused", "one scaled_dot_product_attention", "O(Lq Lk d)", "O((Lq + Lk) d)")
        if dropout == 0:
            rows = max(1, BUDGET // (pairs // lq))
            why = "mask" if bias is None else "bias"
            how = f"scaled_dot_product_attention on {rows} queries at a time, because of the {why}"
            return Plan("fused blocks", how, "O(Lq Lk d)", f"O({rows} Lk)", rows)
    # The other short cuts know neither biases nor dropout, of which they would have to form all.
    lacking = "bias" if bias is not None else "dropout" if dropout > 0 else None
    exact = isinstance(affinity, Factored) and affinity.exact and lacking is None
    if isinstance(map, Mean) and exact and by_keys and (lq + lk) * e * dv < lq * lk * (e + dv):
        return Plan("associative", "q (k' v) / n, scores are never formed", "O((Lq + Lk) d dv)", "O(d dv)")
    if isinstance(map, (Mean, Softmax)) and isinstance(affinity, Concatenation) and by_keys and lacking is None:
        return Plan("sorted", "sort the keys once, prefix sums, one look-up a query", "O(L log L + L dv)", "O(L dv)")
    sparse = not one_graph and isinstance(affinity, Factored) and order(map) is not None and suits(q, k, v)
    if sparse and lacking is None:
        how = "scores in the cache, of which only the keys with weight are kept"
        return Plan("sparse", how, "O(Lq Lk d)", "O((Lq + Lk) d + keys with weight)", max(1, BUDGET * lq // pairs))
    why = f", because the sparse kernel has no {lacking}" if sparse else ""
    numbers = pairs * affinity.width(q, k)
    if one_graph or numbers <= BUDGET or couples_rows(map):
        return Plan("direct", "scores, map, product with the values" + why, "O(Lq Lk d)", "O(Lq Lk)")
    rows = max(1, BUDGET * lq // numbers)
    how = f"{rows} queries at a time against all keys, computed again for the gradient{why}"
    return Plan("blocks", how, "O(Lq Lk d)", f"O({rows} Lk)", rows)


def diagonal_of(causal: Causal, queries: int, keys: int) -> int | None:
    """Query i sees the keys up to i plus this number; None if it sees all."""
    _check.choice("causal", causal, (False, True, "upper-left", "lower-right"))
    return None if causal is False else 0 if causal == "upper-left" else keys - queries


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    affinity: Affinity,
    mask: Tensor | None,
    bias: Tensor | None = None,
    enable_gqa: bool = False,
) -> None:
    """Complain about arguments that do not fit each other."""
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
    in_groups = same_groups(q, k, v)
    leading = [x[..., :1, :, :] if enable_gqa and in_groups and x is not q else x for x in tensors.values()]
    try:
        batch = batch_of(*leading)
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
        remedy = "Add axes of size 1 with unsqueeze."
        if enable_gqa:
            remedy = "With enable_gqa, k and v have the same heads on axis -3, and q a multiple of them."
        elif in_groups:
            remedy = "If heads of q share those of k and v in groups, pass enable_gqa=True."
        _check.complain("q, k, v", shapes, "leading dimensions that broadcast", remedy)
    if mask is not None:
        _check.boolean_mask(mask, torch.Size((*batch, q.shape[-2], k.shape[-2])), of="the scores")
    if bias is not None:
        _check.float_bias(bias, torch.Size((*batch, q.shape[-2], k.shape[-2])))
