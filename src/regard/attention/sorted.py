"""The sorted algorithm: mean and softmax of the concatenation affinity in O(L log L) (docs/math.md, 4.4 and 4.5)."""

from __future__ import annotations

from typing import cast, final

import torch
from torch import Tensor

from regard import _check
from regard.affinity import Concatenation
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.arguments import batch_of
from regard.attention.associative import participants
from regard.attention.call import Call
from regard.attention.masks import key_column
from regard.attention.sorted_sums import split_sum
from regard.maps.entmax import Softmax
from regard.maps.mean import Mean


@final
class Sorted(Algorithm):
    """ReLU splits the sorted keys in two for every query, and prefix sums give the sum of each part."""

    def suits(self, call: Call) -> bool:
        """Where all queries see the same keys."""
        known = isinstance(call.map, (Mean, Softmax)) and isinstance(call.affinity, Concatenation)
        return known and call.same_for_all_queries and call.without_extras

    def cost(self, call: Call) -> Plan:
        """The time of a sort."""
        return Plan("sorted", "sort the keys once, prefix sums, one look-up per query", "O(L log L + L dv)", "O(L dv)")

    def compute(self, call: Call) -> Tensor:
        """By the sums of the map."""
        call = call.finite()
        context = _softmax if isinstance(call.map, Softmax) else _mean
        return call.result(context(call.q, call.k, call.v, cast(Concatenation, call.affinity), call.mask))


def _mean(q: Tensor, k: Tensor, v: Tensor, affinity: Concatenation, mask: Tensor | None) -> Tensor:
    """The mean of ReLU(a + b) over the keys (docs/math.md, 4.4)."""
    v, n = participants(v, mask)
    a, b = _centred(*_halves(q, k, affinity))
    v, b = _same_batch(v, b.unsqueeze(-1))
    sum_v, sum_bv = split_sum(a, b.squeeze(-1), torch.cat([v, b * v], -1)).chunk(2, -1)
    return (a.unsqueeze(-1) * sum_v + sum_bv) / n


def _softmax(q: Tensor, k: Tensor, v: Tensor, affinity: Concatenation, mask: Tensor | None) -> Tensor:
    """The softmax of ReLU(a + b) over the keys (docs/math.md, 4.5).

    A key past the split weighs exp(a + b), one before it exp(0) = 1. Both are divided by the largest weight.
    """
    part = torch.ones_like(k[..., :1]) if mask is None else key_column(mask, k.shape[-2]).to(k.dtype)
    a, b = _halves(q, k, affinity)
    top = torch.where(part.squeeze(-1) > 0, b, b.amin()).detach().amax(-1)
    a, b = a + top.unsqueeze(-1), b - top.unsqueeze(-1)
    v, b, part = _same_batch(v, b.unsqueeze(-1), part)
    one_v = torch.cat([part * v, part], -1)
    # The largest b that takes part is zero now; its derivative counts, so that this is not a clamp.
    grown = torch.where(part > 0, b, 0.0).exp() * one_v
    past_grown, past = split_sum(a, b.squeeze(-1), torch.cat([grown, one_v], -1)).chunk(2, -1)
    a = a.unsqueeze(-1)
    largest = a.detach().clamp(min=0)
    sums = (a - largest).exp() * past_grown + (-largest).exp() * (one_v.sum(-2, keepdim=True) - past)
    total = sums[..., -1:]
    return torch.where(total > 0, sums[..., :-1] / torch.where(total > 0, total, 1.0), 0.0)


def _halves(q: Tensor, k: Tensor, affinity: Concatenation) -> tuple[Tensor, Tensor]:
    """The two parts of the scores, checked to be finite: a sort would hide NaN and infinity."""
    a, b = affinity.halves(q, k)
    for part in (a, b):
        if _check.values_checked(part) and not bool(part.isfinite().all()):
            _check.complain("q, k", f"scores that overflow {a.dtype}", "finite scores", "Scale queries or keys down.")
    return a, b


def _centred(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Move the mean of b over to a: the sum a + b is the same, and no digits are lost in products with b."""
    mean = b.detach().mean(-1, keepdim=True)
    return a + mean, b - mean


def _same_batch(*tensors: Tensor) -> tuple[Tensor, ...]:
    lead = batch_of(*tensors)
    return tuple(x.expand(*lead, *x.shape[-2:]) for x in tensors)
