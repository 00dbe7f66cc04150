"""Affinities that are minus a Wasserstein distance between queries and keys, which are distributions.

A distribution is packed into the last axis of a tensor; each class says how. `pack` makes one from unconstrained
features, for modules that project to them. Smaller distance always means larger score.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from regard import _check
from regard.affinity import Affinity, Shifted
from regard.wasserstein._root import computed, lined_up, norm_between, same_last
from regard.wasserstein.gaussian import factored_w2, gaussian_w2
from regard.wasserstein.line import histogram_wasserstein, wasserstein_1d
from regard.wasserstein.points import entropic_wasserstein


class Distance(Affinity):
    """Minus a distance over a temperature: subclass it with `distance`. Scores are -W / tau (docs/math.md, 6.20).

    `tau` > 0 is a number, or a tensor that broadcasts to the scores ((H, 1, 1): one per head) and can be learned.
    """

    tau: float | Tensor

    @abstractmethod
    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """Distance of every query (..., Lq, e) to every key (..., Lk, e): (..., Lq, Lk)."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Minus the distance, over tau."""
        return -self.distance(q, k) / self.tau

    def features(self, width: int) -> int:
        """The number of unconstrained features that `pack` takes for a head of this width."""
        return width

    def pack(self, x: Tensor) -> Tensor:
        """A distribution from unconstrained features (..., n)."""
        return x

    def __post_init__(self) -> None:
        """Check that a number `tau` is positive."""
        if not isinstance(self.tau, Tensor):
            _check.number("tau", self.tau, above=0, remedy="The smaller, the sharper the attention.")


class Embedded(Distance, Shifted):
    """A Wasserstein-2 distance that is Euclidean between `points`. Scores are *squared*: -W^2 / tau.

    Inside softmax the squared norm of the query cancels, which leaves an inner product (6.23): `attend` computes it by
    one call of scaled dot product attention. `Unsquared` gives -W / tau.
    """

    @abstractmethod
    def points(self, x: Tensor) -> Tensor:
        """Where a distribution (..., e) lies in the space in which its distance is Euclidean."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Minus the squared distance, over tau."""
        return -self.distance(q, k).square() / self.tau

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """[2 x, 1] / tau for a query at x, and [y, -|y|^2] for a key at y, both relative to the mean of the keys."""
        x, y = self._centred(q, k)
        x = torch.cat([2 * x, torch.ones_like(x[..., :1])], -1) / self.tau
        return x, torch.cat([y, -y.square().sum(-1, keepdim=True)], -1)

    def omitted(self, q: Tensor, k: Tensor) -> Tensor:
        """-|x|^2 / tau for a query at x, relative to the mean of the keys."""
        return -self._centred(q, k)[0].square().sum(-1, keepdim=True) / self.tau

    def cancelled(self, q: Tensor, k: Tensor) -> Tensor:
        """(|x|^2 + |y|^2) / tau, the largest of all queries at x and keys at y."""
        x, y = (z.square().sum(-1).amax() for z in self._centred(q, k))
        return (x + y) / (self.tau.amin() if isinstance(self.tau, Tensor) else self.tau)

    def _centred(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as points. Any centre gives the same weights; the mean of the keys avoids cancellation when
        all points lie far from zero."""
        x, y = self.points(q), self.points(k)
        centre = y.detach().mean(-2, keepdim=True)
        return x - centre, y - centre


@final
@dataclass(frozen=True, eq=False, repr=False)
class Unsquared(Distance):
    """The distance itself, where `of` scores its square: -W / tau (6.20). For `gate` and `inverse`. Shapes as in `of`.

    >>> Unsquared(GaussianW2()).scores(torch.tensor([[0.0, 1.0]]), torch.tensor([[3.0, 5.0]]))
    tensor([[-5.]])
    """

    of: Embedded
    tau: float | Tensor = 1.0

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """That of `of`."""
        return self.of.distance(q, k)

    def features(self, width: int) -> int:
        """Those of `of`."""
        return self.of.features(width)

    def pack(self, x: Tensor) -> Tensor:
        """That of `of`."""
        return self.of.pack(x)


@final
@dataclass(frozen=True, eq=False, repr=False)
class GaussianW2(Embedded):
    """Diagonal Gaussians, packed as [mean, standard deviation] (..., 2 d): -W2^2 / tau (6.11, 6.23), see `gaussian_w2`.

    >>> GaussianW2().scores(torch.tensor([[0.0, 1.0]]), torch.tensor([[3.0, 5.0], [0.0, 1.0]]))
    tensor([[-25.,  -0.]])
    """

    tau: float | Tensor = 1.0

    def points(self, x: Tensor) -> Tensor:
        """Means and standard deviations as they are; the latter must not be negative."""
        d = _half(x)
        if _check.values_checked(x) and bool((x[..., d:] < 0).any()):
            _check.complain("q or k", "a negative scale", "[mean, scale] with scale >= 0", "Use softplus or exp.")
        return x

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """See `gaussian_w2`."""
        d = _half(q)
        return gaussian_w2(q[..., :d], q[..., d:], k[..., :d], k[..., d:], pairwise=True)

    def features(self, width: int) -> int:
        """A mean and a scale for each."""
        return 2 * width

    def pack(self, x: Tensor) -> Tensor:
        """The second half goes through softplus."""
        mean, scale = x.chunk(2, -1)
        return torch.cat([mean, torch.nn.functional.softplus(scale)], -1)


@final
@dataclass(frozen=True, eq=False, repr=False)
class EmpiricalW2(Embedded):
    """One-dimensional samples, the features of a vector (..., n) in any order: -W2^2 / tau (6.15, 6.23).

    >>> EmpiricalW2().scores(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    tensor([[-0., -4.]])
    """

    tau: float | Tensor = 1.0

    def points(self, x: Tensor) -> Tensor:
        """Sorted, and over sqrt(n): the distance is a root of a *mean* square."""
        return x.sort(dim=-1, stable=True).values / math.sqrt(x.shape[-1])

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """See `wasserstein_1d`."""
        return wasserstein_1d(q, k, 2, pairwise=True)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Euclidean(Embedded):
    """Points (..., d) as they are: -|q - k|^2 / tau (docs/math.md, 1.7 and 6.23). Maps of it are kernel regression.

    Softmax gives the Gaussian kernel, by one fused call, sparsemax the Epanechnikov kernel, `entmax` with alpha = 1.5
    the biweight and with 4/3 the triweight, each with a bandwidth that adapts to the keys around a query (1.8).

    `tau`: > 0, a number or a tensor that broadcasts to the scores ((H, 1, 1): one per head) and can be learned; default
    1. Differentiable in q, k and tau, also at distance zero.

    >>> Euclidean(2.0).scores(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[-12.5000,  -0.0000]])
    """

    tau: float | Tensor = 1.0

    def points(self, x: Tensor) -> Tensor:
        """As they are."""
        return x

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """From differences: the expansion of the square loses digits where points are close."""
        (q, k), dtype = computed(q=q, k=k)
        same_last("q", q, "k", k)
        lined_up("q", q, "k", k, True, 1)
        return norm_between(q, k, 2, True).to(dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class BuresW2(Distance):
    """Full Gaussians in `dim` dimensions, packed as [mean, factor]: -W2 / tau, see `bures_w2` (6.13).

    The factor L (dim, rank), with covariance L L^T, is Cholesky's or any other, flattened: (..., dim + dim * rank).

    >>> q = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    >>> BuresW2(2).scores(q, torch.cat([q, 3 * q]))
    tensor([[-0.0000, -2.8284]])
    """

    dim: int
    rank: int | None = None
    tau: float | Tensor = 1.0

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """See `factored_w2`."""
        return factored_w2(*self._unpacked(q), *self._unpacked(k), pairwise=True)

    def features(self, width: int) -> int:
        """Those of a mean and a factor; independent of the width of the head."""
        return self.dim * (1 + self._rank)

    def width(self, q: Tensor, k: Tensor) -> int:
        """Differences of factors, rotations, and the temporary arrays of the singular value decomposition."""
        return 8 * self.dim * self._rank + self.dim

    @property
    def _rank(self) -> int:
        return self.dim if self.rank is None else self.rank

    def _unpacked(self, x: Tensor) -> tuple[Tensor, Tensor]:
        width = self.features(0)
        if x.shape[-1] != width:
            _check.complain("q or k", f"width {x.shape[-1]}", f"{width}: a mean and a factor", "Match dim and rank.")
        return x[..., : self.dim], x[..., self.dim :].reshape(*x.shape[:-1], self.dim, self._rank)


@final
@dataclass(frozen=True, eq=False, repr=False)
class HistogramW1(Distance):
    """Histograms over n ordered bins, the softmax of features (..., n): -W1 / tau (6.16).

    See `histogram_wasserstein`. `support` (n,) holds the positions of the bins; default 0, 1, ..., n - 1.

    >>> HistogramW1().scores(torch.tensor([[9.0, -9.0, -9.0]]), torch.tensor([[-9.0, -9.0, 9.0]]))
    tensor([[-2.]])
    """

    support: Tensor | None = None
    tau: float | Tensor = 1.0

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """See `histogram_wasserstein`. Softmax in half precision does not sum to one: it is computed in float32."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        a, b = q.to(dtype).softmax(-1), k.to(dtype).softmax(-1)
        return histogram_wasserstein(a, b, self.support, pairwise=True).to(q.dtype)


@final
@dataclass(frozen=True, eq=False, repr=False)
class EntropicW2(Distance):
    """Sets of points in `dim` dimensions, flattened (..., n * dim): -W / tau (6.19), see `entropic_wasserstein`.

    `dim`: dimensions of a point; queries and keys may be sets of different sizes.
    `eps`: weight of the entropy, in units of the squared distance; default 0.05.
    `iterations`: of Sinkhorn, at most; default 200.
    `tau`: temperature; default 1.

    >>> q = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    >>> EntropicW2(2).scores(q, q + 3)
    tensor([[-4.2426]])
    """

    dim: int
    eps: float = 0.05
    iterations: int = 200
    tau: float | Tensor = 1.0

    def distance(self, q: Tensor, k: Tensor) -> Tensor:
        """See `entropic_wasserstein`."""
        return entropic_wasserstein(self._set(q), self._set(k), self.eps, pairwise=True, iterations=self.iterations)

    def width(self, q: Tensor, k: Tensor) -> int:
        """Costs, kernels and plans, each with as many entries as the product of the sizes of the two sets."""
        return 6 * (q.shape[-1] // self.dim) * (k.shape[-1] // self.dim)

    def _set(self, x: Tensor) -> Tensor:
        if x.shape[-1] % self.dim:
            _check.complain("q or k", f"width {x.shape[-1]}", f"a multiple of dim = {self.dim}", "Flatten (n, dim).")
        return x.reshape(*x.shape[:-1], -1, self.dim)


def _half(x: Tensor) -> int:
    if x.shape[-1] % 2:
        _check.complain("q or k", f"width {x.shape[-1]}", "an even width, [mean, scale]", "Concatenate the two.")
    return x.shape[-1] // 2
