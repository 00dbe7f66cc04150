"""Self-attention between distributions, and its learnable gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor, nn

from regard import _check
from regard.attention.attend import attend
from regard.maps.entmax import softmax
from regard.maps.gates import gate
from regard.maps.sinkhorn import Transport
from regard.wasserstein.affinities import Distance, GaussianW2


class Gate(nn.Module):
    """See `regard.gate` (6.21): bias and temperature are learned, one of each per head.

    >>> Gate(heads=2, bias=1.0)(torch.zeros(2, 3, 3)).shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, heads: int = 1, bias: float = 0.0, tau: float = 1.0) -> None:
        """Start at this bias and temperature in every head."""
        super().__init__()
        heads = _check.count("heads", heads)
        tau = _check.number("tau", tau, above=0)
        self.bias = nn.Parameter(torch.full((heads, 1, 1), _check.number("bias", bias)))
        self.log_tau = nn.Parameter(torch.full((heads, 1, 1), tau).log())

    def forward(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights for scores (..., heads, Lq, Lk)."""
        return gate(s, dim, mask, bias=self.bias, tau=self.log_tau.exp())


class WassersteinSelfAttention(nn.Module):
    """Self-attention in which every token is a distribution, and close ones attend to each other.

    Queries and keys are projected to the features from which `affinity` makes distributions, one per head (for
    Gaussians a mean and, through softplus, a scale); `map` turns minus their distances into the weights of the values
    (docs/math.md, 6.20 to 6.23). See `attend` for the algorithm that is chosen.

    `dim`: width of input and output.
    `heads`: a divisor of it; default 1.
    `affinity`: `GaussianW2`, `EmpiricalW2`, `BuresW2`, `HistogramW1`, `EntropicW2` or `Unsquared`; default `GaussianW2`
    with tau the square root of a head's features.
    `map`: any map or module that is one: `softmax` (default), `inverse`, `Gate(heads)`, `Sinkhorn()`.
    `dropout`: share of weights set to zero in training, which needs them in memory; default 0.
    `bias`: of the four projections; default True.

    >>> layer = WassersteinSelfAttention(16, heads=2)
    >>> y, weights = layer(torch.randn(3, 10, 16), return_weights=True)
    >>> y.shape, weights.shape
    (torch.Size([3, 10, 16]), torch.Size([3, 2, 10, 10]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        affinity: Distance | None = None,
        map: Callable[..., Tensor | Transport] = softmax,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        """Create the four projections."""
        super().__init__()
        dim, self.heads = _check.count("dim", dim), _check.count("heads", heads)
        if dim % heads:
            _check.complain("heads", heads, f"a divisor of dim = {dim}", "Choose another number of heads.")
        # Squared distances of random vectors vary like the root of their width: this tau keeps softmax from saturating.
        self.affinity = GaussianW2(tau=(2 * dim // heads) ** 0.5) if affinity is None else affinity
        if not isinstance(self.affinity, Distance):
            _check.complain("affinity", type(affinity).__name__, "a Distance", "Try regard.GaussianW2().", TypeError)
        self.map = map
        self.dropout = nn.Dropout(_check.share("dropout", dropout))
        features = heads * self.affinity.features(dim // heads)
        self.query, self.key = nn.Linear(dim, features, bias), nn.Linear(dim, features, bias)
        self.value, self.out = nn.Linear(dim, dim, bias), nn.Linear(dim, dim, bias)

    @overload
    def forward(self, x: Tensor, mask: Tensor | None = None, return_weights: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, return_weights: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Output (..., N, dim), and with `return_weights` the weights (..., heads, N, N), for x (..., N, dim).

        `mask` is boolean, True where a token may be attended to, and broadcasts to (..., N, N); (..., 1, N) for
        padding.
        """
        _check.floating("x", x, min_dims=2)
        q, k = (self.affinity.pack(self._heads(project(x))) for project in (self.query, self.key))
        v = self._heads(self.value(x))
        if mask is not None:
            _check.boolean_mask(mask, torch.Size((*x.shape[:-1], x.shape[-2])), "the weights")
            mask = mask.unsqueeze(-3) if mask.dim() > 2 else mask
        dropping = self.training and self.dropout.p > 0
        weights = None
        if return_weights or dropping:
            weights = self.map(self.affinity.scores(q, k), mask=mask)
            weights = weights.weights if isinstance(weights, Transport) else weights
            c = self.dropout(weights) @ v
        else:
            c = attend(q, k, v, affinity=self.affinity, map=self.map, mask=mask)
        y: Tensor = self.out(c.transpose(-3, -2).flatten(-2))
        return y if not return_weights else (y, weights)  # type: ignore[return-value]

    def _heads(self, x: Tensor) -> Tensor:
        """(..., N, heads * e) to (..., heads, N, e)."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)
