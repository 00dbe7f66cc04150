"""The description of one call of `attend`, built and checked once, and passed to every algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard._torch import exporting
from regard.affinity import Affinity
from regard.attention.arguments import Causal, Map, batch_of, check_shapes, diagonal_of
from regard.attention.masks import same_for_all_queries, with_causal
from regard.attention.range_checks import finite_context, finite_parameters
from regard.maps.spelling import as_map


@dataclass(frozen=True, eq=False, repr=False)
class Call:
    """The arguments of `attend`, checked to fit each other, and what follows from them (docs/math.md, 4.1).

    >>> from regard import Dot
    >>> x = torch.zeros(2, 5, 4)
    >>> Call.of(x, x, x, Dot(1.0), "sparsemax")
    Call(q=(2, 5, 4), k=(2, 5, 4), v=(2, 5, 4), affinity=Dot(scale=1.0), map=Sparsemax())
    """

    q: Tensor
    k: Tensor
    v: Tensor
    affinity: Affinity
    map: Map  # a value, where it is one of regard's
    mask: Tensor | None
    diagonal: int | None  # query i sees the keys up to i + diagonal; None: all
    bias: Tensor | None  # of two axes at least
    dropout: float
    batch: torch.Size  # the leading dimensions of the scores
    exporting: bool  # to a graph for all sizes: no choice may depend on a size
    dtype: torch.dtype  # of the result

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        affinity: Affinity,
        map: Any,
        mask: Tensor | None = None,
        *,
        causal: Causal = False,
        bias: Tensor | None = None,
        dropout_p: float = 0.0,
        enable_gqa: bool = False,
    ) -> Call:
        """The arguments of `attend`, checked except for values in tensors; `v` None becomes values of width zero."""
        batch = check_shapes(q, k, v, affinity, mask, bias, enable_gqa)
        if not enable_gqa and (_exceeds(mask, q, k) or _exceeds(bias, q, k)):
            q = q.expand(*batch, *q.shape[-2:])  # a mask or a bias with the batch of v alone: scores have it too
        value = as_map(map)
        dropout = _check.share("dropout_p", dropout_p)
        diagonal = diagonal_of(causal, q.shape[-2], k.shape[-2])
        v = k[..., :0] if v is None else v
        bias = None if bias is None else bias[(None,) * max(0, 2 - bias.dim())]
        return cls(q, k, v, affinity, value, mask, diagonal, bias, dropout, batch, exporting(), q.dtype)

    @property
    def queries(self) -> int:
        """How many queries there are, Lq."""
        return self.q.shape[-2]

    @property
    def keys(self) -> int:
        """How many keys there are, Lk."""
        return self.k.shape[-2]

    @property
    def pairs(self) -> int:
        """How many scores there are."""
        return math.prod(self.batch) * self.queries * self.keys

    @property
    def numbers(self) -> int:
        """How many numbers are in memory while all scores are formed."""
        return self.pairs * self.affinity.width(self.q, self.k)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (*self.batch, self.queries, self.v.shape[-1])

    @property
    def same_for_all_queries(self) -> bool:
        """Whether mask and bias are the same for every query, and it is not causal."""
        return self.diagonal is None and same_for_all_queries(self.mask) and same_for_all_queries(self.bias)

    @property
    def unmasked(self) -> bool:
        """Whether there is neither a mask nor a bias; it may be causal."""
        return self.mask is None and self.bias is None

    @property
    def without_extras(self) -> bool:
        """Whether weights are the map of the scores: no bias is added, nothing is dropped."""
        return self.bias is None and self.dropout == 0

    @property
    def couples_rows(self) -> bool:
        """Whether the map needs all rows at once: it says so, or a parameter differs between rows."""
        return bool(getattr(self.map, "couples_rows", False))

    @property
    def full_mask(self) -> Tensor | None:
        """The mask for all pairs, False also where `causal` hides a key."""
        return with_causal(self.mask, self.diagonal, self.queries, self.keys, self.q.device)

    def with_tensors(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Call:
        """The same call with other tensors, as in `attend`."""
        return replace(self, q=q, k=k, v=v, mask=mask, bias=bias, batch=batch_of(q, k, v))

    @property
    def promoted_dtype(self) -> torch.dtype:
        """The widest dtype of q and the bias."""
        return self.q.dtype if self.bias is None else torch.promote_types(self.q.dtype, self.bias.dtype)

    def promoted(self) -> Call:
        """The call in one dtype, the widest of q and the bias."""
        if self.bias is None:
            return self
        q, k, v, bias = (x.to(self.promoted_dtype) for x in (self.q, self.k, self.v, self.bias))
        return replace(self, q=q, k=k, v=v, bias=bias)

    def finite(self) -> Call:
        """The call in the dtype of the computation, float32 for half precision; NaN and infinity are errors, also in
        the tensors of the affinity: not every score that they enter is formed, and not every one shows them."""
        finite_parameters(self.affinity)
        for name, x in (("q", self.q), ("k", self.k), ("v", self.v)):
            _check.finite(name, x)
        call = self.promoted()
        if call.bias is not None:
            _check.below_infinity("bias", call.bias)
        if call.q.dtype not in (torch.float16, torch.bfloat16):
            return call
        bias = None if call.bias is None else call.bias.float()
        return replace(call, q=call.q.float(), k=call.k.float(), v=call.v.float(), bias=bias)

    def result(self, c: Tensor) -> Tensor:
        """The context in the dtype of the queries; an error if something overflowed."""
        return finite_context(c, self.v).to(self.dtype)

    def zeros(self) -> Tensor:
        """The context of an empty call."""
        zeros = self.q.new_zeros(*self.batch, self.queries, self.v.shape[-1])
        return (self.q.sum() + self.k.sum() + self.v.sum()) * zeros

    def __repr__(self) -> str:
        return shown(self, {name: getattr(self, name) for name in ("q", "k", "v", "affinity", "map")})


def _exceeds(x: Tensor | None, q: Tensor, k: Tensor) -> bool:
    """Whether a mask or a bias has leading dimensions that the scores of q and k lack."""
    if x is None or x.dim() < 3 or exporting():
        return False
    leading = batch_of(q, k)
    return bool(torch.broadcast_shapes(leading, x.shape[:-2]) != leading)
