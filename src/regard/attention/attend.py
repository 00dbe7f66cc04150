"""`attend`: steps 1 to 3 together, by the first exact algorithm that suits; and `explain_attend`, which names it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from regard.affinity import Affinity, Dot
from regard.attention.algorithm import Plan
from regard.attention.arguments import Causal, Map
from regard.attention.call import Call
from regard.attention.choice import context_of, plan_of
from regard.attention.fused import usual_softmax
from regard.attention.grouped_queries import GroupedQueries
from regard.attention.precision import precise
from regard.attention.sink import with_sink
from regard.maps.entmax import softmax


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
    sink: float | Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Expectation of the values under the map of the scores: the context c (docs/math.md, 4.1).

    - `q`: queries (..., Lq, dq); leading dimensions broadcast.
    - `k`: keys (..., Lk, dk).
    - `v`: values (..., Lk, dv); the context is (..., Lq, dv).
    - `affinity`: scores queries against keys; it has the factor of the scores, `Dot(scale)`; default `Dot()`.
    - `map`: turns scores into weights: one of regard's maps as a value, a function, a `functools.partial` or a name, or
      any callable that fits `Map`; default softmax.
    - `mask`: boolean, True where a key takes part; broadcasts to (..., Lq, Lk): a mask of keys has shape (..., 1, Lk);
      default None.
    - `causal`: which keys a query sees, without a mask in memory. "lower-right", as True: the last query sees every
      key, the one before it all but the last. "upper-left", torch's `is_causal`: the first query sees the first key,
      the next one two. They differ where Lq and Lk do. Default False.
    - `bias`: floating-point, broadcasts to (..., Lq, Lk), added to the scores (1.5): -inf leaves a key out, any other
      number is a number, however low. The computation is in the wider dtype of `q` and `bias`; default None.
    - `sink`: the score of one more key, whose value is zero (4.8): it takes weight from the others, so that a query may
      attend to nothing. A number, or a tensor that broadcasts to (..., Lq, 1), so (H, 1, 1) for one per head, which can
      be learned. No mask hides it. For maps whose weights have a fixed total in each row; default None.
    - `dropout_p`: the share of weights that are set to zero, while the others are scaled up; pass zero outside of
      training; default 0.
    - `enable_gqa`: `q` has a multiple of the heads (axis -3) of `k` and `v`, and consecutive heads share
      one; keys and values are copied only where the affinity or the map has tensors; default False.

    The result is that of the obvious program (scores, map, product), to rounding; `explain_attend` says which
    algorithm computes it. Differentiable in q, k, v, the bias, the sink and the parameters of the affinity and the
    map; twice too, except by the fused algorithm, whose kernel has no second derivative and says so. A query with no
    key left gets zeros, and zero gradients. Half precision is computed in float32.

    >>> import torch
    >>> q, k, v = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 3)
    >>> attend(q, k, v).shape
    torch.Size([2, 5, 3])
    >>> from functools import partial
    >>> from regard import entmax
    >>> attend(q, k, v, Dot(1.0), partial(entmax, alpha=1.5), mask=torch.ones(7, dtype=torch.bool)).shape
    torch.Size([2, 5, 3])
    >>> attend(q, k, v, bias=-torch.arange(7.0), causal="upper-left").shape  # nearer keys are preferred
    torch.Size([2, 5, 3])
    >>> attend(torch.zeros(1, 4), torch.zeros(3, 4), torch.ones(3, 1), sink=0.0)  # a quarter of the weight is lost
    tensor([[0.7500]])
    """
    bare = mask is None and bias is None and sink is None and not causal and dropout_p == 0
    if bare and (usual := usual_softmax(q, k, v, affinity, map)) is not None:
        return usual
    call = Call.of(q, k, v, affinity, map, mask, causal=causal, bias=bias, dropout_p=dropout_p, enable_gqa=enable_gqa)
    call = with_sink(precise(call), sink)
    groups = GroupedQueries.of(call) if enable_gqa else None
    return context_of(call) if groups is None else groups.joined([context_of(part) for part in groups.parts])


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
    sink: float | Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Plan:
    """The exact algorithm that `attend` takes for these arguments, and its cost (docs/math.md, 4.2 to 4.6).

    It reads no values but those of a tensor of alphas.

    >>> import torch
    >>> x = torch.zeros(1, 4096, 64)
    >>> print(explain_attend(x, x, x))
    fused: one scaled_dot_product_attention; time O(Lq Lk d), memory O((Lq + Lk) d)
    >>> explain_attend(x, x, x, map="sparsemax", dropout_p=0.1).how.partition(",")[0]
    '512 queries at a time against all keys'
    """
    call = Call.of(q, k, v, affinity, map, mask, causal=causal, bias=bias, dropout_p=dropout_p, enable_gqa=enable_gqa)
    call = with_sink(call, sink)
    groups = GroupedQueries.of(call) if enable_gqa else None
    plan = plan_of(call if groups is None else groups.parts[0])
    how = [plan.how] + (["the sink as one more key"] if sink is not None else [])
    return replace(plan, how=", ".join(how if groups is None else [*how, groups.how]))
