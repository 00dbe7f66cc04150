"""Step 1: affinities score queries against keys. Small immutable objects that hold their parameters, if any.

The method to implement is `scores`. Affinities whose scores are a product of two small matrices are `Factored`:
`attend` then never forms the scores. Others are scored in blocks of queries, sized by the memory that `width` states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown


class Affinity(ABC):
    """Similarity of a query and a key (1.1 to 1.4): a subclass with `scores` works with `attend`.

    >>> class Minus(Affinity):
    ...     def scores(self, q, k):
    ...         return -torch.cdist(q, k)
    >>> Minus().scores(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([[-5.]])
    """

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Score every query (..., Lq, dq) against every key (..., Lk, dk): (..., Lq, Lk)."""

    def width(self, q: Tensor, k: Tensor) -> int:
        """Numbers in memory per (query, key) pair while scoring; `attend` sizes its blocks by it."""
        return 1

    def __repr__(self) -> str:
        return shown(self, vars(self))


class Factored(Affinity):
    """An affinity whose scores are the inner products of transformed queries and transformed keys.

    `factors` are all that `attend` needs; `exact` says whether their products are the scores (docs/math.md, 4.2, 6.23).

    >>> x = torch.zeros(1, 9, 4)
    >>> isinstance(Dot(), Factored), isinstance(Additive(x[0, 0]), Factored)
    (True, False)
    """

    #: True when the products are the scores; False when they omit a constant per query, which does not change the
    #: weights of maps that normalise a row.
    exact: ClassVar[bool] = True

    @abstractmethod
    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Transformed queries (..., Lq, e) and keys (..., Lk, e)."""


class Shifted(Factored):
    """A factored affinity whose products omit a constant per query, which `omitted` gives (docs/math.md, 6.23)."""

    exact: ClassVar[bool] = False

    @abstractmethod
    def omitted(self, q: Tensor, k: Tensor) -> Tensor:
        """What the scores have beyond the products of the factors, (..., Lq, 1)."""

    @abstractmethod
    def cancelled(self, q: Tensor, k: Tensor) -> Tensor:
        """The size of the terms that cancel in the products (): times the machine epsilon, the rounding of a score."""


def same_width(q: Tensor, k: Tensor) -> None:
    """Check that queries and keys have the same width."""
    if q.shape[-1] != k.shape[-1]:
        _check.complain(
            "k",
            f"width {k.shape[-1]}",
            f"the width of q, {q.shape[-1]}",
            "Project queries and keys to one width, or use Bilinear(W).",
        )


def _times(x: Tensor, w: Tensor) -> Tensor:
    """x.w over the last axis, (..., L, d) and (..., d) to (..., L)."""
    w = w.to(x.dtype)
    return x @ w if w.dim() == 1 else (x @ w.unsqueeze(-1)).squeeze(-1)


@final
@dataclass(frozen=True)
class Dot(Factored):
    """Inner product times `scale`, default 1/sqrt(d) (docs/math.md, 1.1).

    `Dot()` is scaled dot product; with softmax, `Dot(1.0)` is the Gaussian affinity of non-local networks on raw
    features and the embedded Gaussian on projected ones. `q` and `k` have the same width d.

    >>> Dot(1.0).scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[11.,  2.]])
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            _check.number("scale", self.scale)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Score every query against every key."""
        q, k = self.factors(q, k)
        return q @ k.mT

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The scaled queries, and the keys as they are."""
        same_width(q, k)
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        return (q if scale == 1 else q * scale), k


@final
@dataclass(frozen=True, eq=False, repr=False)
class Bilinear(Factored):
    """Luong's general score q' W k (docs/math.md, 1.2), with `weight` W (..., dq, dk), learnable.

    >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> Bilinear(swap).scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[10.]])
    """

    weight: Tensor

    def __post_init__(self) -> None:
        _check.floating("weight", self.weight, min_dims=2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Score every query against every key."""
        q, k = self.factors(q, k)
        return q @ k.mT

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The queries times W, and the keys as they are."""
        widths = (q.shape[-1], k.shape[-1])
        if self.weight.shape[-2:] != widths:
            _check.complain(
                "weight",
                f"shape {tuple(self.weight.shape)}",
                f"the last two sizes {widths}: the widths of q and k",
                "Transpose it, or check the projections.",
            )
        return q @ self.weight.to(q.dtype), k


@final
@dataclass(frozen=True, eq=False, repr=False)
class Concatenation(Affinity):
    """Concatenation affinity ReLU(w_q.q + w_k.k) (docs/math.md, 1.3); `w_q` (..., dq), `w_k` (..., dk), learnable.

    `w_q` and `w_k` are the two halves of the weight vector of the concatenated [q, k]; leading dimensions, if any,
    broadcast with those of q and k, so that heads may differ. At zero the derivative is zero.

    >>> affinity = Concatenation(torch.tensor([1.0]), torch.tensor([2.0]))
    >>> affinity.scores(torch.tensor([[1.0]]), torch.tensor([[3.0], [-4.0]]))
    tensor([[7., 0.]])
    """

    w_q: Tensor
    w_k: Tensor

    def __post_init__(self) -> None:
        _check.floating("w_q", self.w_q, min_dims=1)
        _check.floating("w_k", self.w_k, min_dims=1)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Score every query against every key."""
        a, b = self.halves(q, k)
        s = a.unsqueeze(-1) + b.unsqueeze(-2)
        return torch.where(s > 0, s, 0.0)  # not relu: torch does not specify its derivative at zero

    def halves(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """w_q.q (..., Lq) and w_k.k (..., Lk)."""
        for name, w, x in (("w_q", self.w_q, q), ("w_k", self.w_k, k)):
            if w.shape[-1] != x.shape[-1]:
                _check.complain(name, f"length {w.shape[-1]}", f"{x.shape[-1]}, the width of {name[-1]}", "Match them.")
        return _times(q, self.w_q), _times(k, self.w_k)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Additive(Affinity):
    """Bahdanau's additive score v.tanh(q + k) (docs/math.md, 1.4), with `v` (..., d), learnable.

    `q` and `k` are already projected to the width d; leading dimensions of `v` broadcast with theirs. Takes d numbers
    of memory per pair while scoring.

    >>> Additive(torch.tensor([1.0, 1.0])).scores(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
    tensor([[0.9242]])
    """

    v: Tensor

    def __post_init__(self) -> None:
        _check.floating("v", self.v, min_dims=1)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Score every query against every key."""
        same_width(q, k)
        if self.v.shape[-1] != q.shape[-1]:
            _check.complain("v", f"length {self.v.shape[-1]}", f"the width of q and k, {q.shape[-1]}", "Match them.")
        v = self.v if self.v.dim() == 1 else self.v.unsqueeze(-2)
        return _times(torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)), v)

    def width(self, q: Tensor, k: Tensor) -> int:
        """The width d: one tanh per feature."""
        return q.shape[-1]


@final
@dataclass(frozen=True, eq=False, repr=False)
class SoftCap(Affinity):
    """Soft cap on the scores of another affinity, cap * tanh(s / cap): all lie within +-`cap` (docs/math.md, 1.6).

    `of`: any affinity; shapes and gradients as in it.
    `cap`: a number > 0; small scores are hardly changed, large ones saturate.

    A bias and a sink of `attend` are not capped.

    >>> SoftCap(Dot(1.0), 5.0).scores(torch.ones(1, 1), torch.tensor([[1.0], [100.0]]))
    tensor([[0.9869, 5.0000]])
    """

    of: Affinity
    cap: float

    def __post_init__(self) -> None:
        if not isinstance(self.of, Affinity):
            _check.complain("of", type(self.of).__name__, "an Affinity object", "For example Dot().", TypeError)
        _check.number("cap", self.cap, above=0, remedy="Leave the wrapper out for scores without a cap.")

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Score every query against every key."""
        return self.cap * torch.tanh(self.of.scores(q, k) / self.cap)

    def width(self, q: Tensor, k: Tensor) -> int:
        """That of `of`, and one for the hyperbolic tangent."""
        return self.of.width(q, k) + 1
