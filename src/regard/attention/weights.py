"""The weights themselves: steps 1 and 2 without the values."""

from __future__ import annotations

from torch import Tensor

from regard.affinity import Affinity, Dot
from regard.attention.arguments import Causal, Map
from regard.attention.call import Call
from regard.attention.grouped_queries import GroupedQueries
from regard.attention.sink import with_sink
from regard.maps.entmax import softmax


def attention_weights(
    q: Tensor,
    k: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: Causal = False,
    bias: Tensor | None = None,
    sink: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights p themselves (docs/math.md, 4.1), (..., Lq, Lk); arguments as in `attend`, which needs less memory.

    With a `sink` they are those of the keys: what they lack of their total is the sink's.

    >>> import torch
    >>> attention_weights(torch.zeros(2, 4), torch.zeros(2, 4), causal=True)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    call = Call.of(q, k, None, affinity, map, mask, causal=causal, bias=bias, enable_gqa=enable_gqa)
    call = with_sink(call, sink)
    groups = GroupedQueries.of(call) if enable_gqa else None
    p = _weights(call) if groups is None else groups.joined([_weights(part) for part in groups.parts])
    return p if sink is None else p[..., 1:]


def weights_of(
    q: Tensor, k: Tensor, affinity: Affinity, map: Map, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """The map of the scores plus `bias`; only affinity and map check their inputs. Arguments as in `attend`."""
    s = affinity.scores(q, k)
    p = map(s if bias is None else s + bias, mask=mask)
    return p if isinstance(p, Tensor) else p.weights


def _weights(call: Call) -> Tensor:
    call = call.finite()
    return weights_of(call.q, call.k, call.affinity, call.map, call.full_mask, call.bias).to(call.dtype)
