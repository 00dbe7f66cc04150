"""What is trained on frozen features: a pool of the cells of a picture, and a linear layer that names its class.

Legend: B batch, h x w cells, L = h w, D width of the features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import _check
from regard.classify.pools import Average, NonLocalThenAverage, parse_pool
from regard.maps.entmax.value import entmax_order
from regard.nn import NonLocal2d
from regard.vqa.kinds import Discrete, Kind, named_map
from regard.vqa.output import Looked, OutputAttention

_LEAST = 1e-3  # standard deviation of a feature, as a share of the mean one, below which it is not scaled up further


class Scored(NamedTuple):
    """Scores of the classes (B, classes), and what the pool looked at."""

    scores: Tensor
    looked: Looked


class Bounded(nn.Module):
    """Scores between -bound and bound: bound tanh(s / bound), which is s near zero.

    >>> Bounded(2.0)(torch.tensor([0.0, 0.1, 100.0]))
    tensor([0.0000, 0.0999, 2.0000])
    """

    def __init__(self, bound: float) -> None:
        """Set the bound, above zero."""
        super().__init__()
        self.bound = _check.number("bound", bound, above=0)

    def forward(self, s: Tensor) -> Tensor:
        """Scores of any shape (...)."""
        return self.bound * torch.tanh(s / self.bound)

    def extra_repr(self) -> str:
        """The bound."""
        return f"{self.bound:.3g}"


def score_bound(alpha: float, cells: int, largest: float) -> float:
    """The bound of scores with which one of the cells has at most the weight `largest` under alpha-entmax.

    One cell at the bound b and all others at -b have the weights m = `largest` and q = (1 - m) / (cells - 1), and
    p^(alpha - 1) / (alpha - 1) is the score up to a constant (2.4): so 2 b is the difference of these; for softmax,
    alpha = 1, the difference of logarithms.

    `alpha`: at least 1.
    `cells`: how many, at least 2.
    `largest`: above 1 / cells and below 1.

    >>> import regard
    >>> for alpha in (1, 1.5, 2):
    ...     b = score_bound(alpha, 49, 0.5)
    ...     p = regard.entmax(torch.cat([torch.tensor([b]), torch.full((48,), -b)]), alpha)
    ...     print(f"{b:.3f} {float(p[0]):.3f}")
    1.936 0.500
    0.605 0.500
    0.245 0.500
    """
    rest = (1 - largest) / (cells - 1)
    if alpha == 1:
        return math.log(largest / rest) / 2
    power = alpha - 1
    return float(largest**power - rest**power) / (2 * power)


class ClassifierHead(nn.Module):
    """Features (B, h, w, D) to scores of classes (B, classes), by a pool and a linear layer.

    Features are standardised by the mean and the standard deviation of *averaged* features (`standardise`). The last
    layer of the network that scores cells starts at zero, so that every attention starts as an even spread, a discrete
    one as average pooling. Scores are bounded: without a bound they grow as long as the training goes on, attention
    shrinks to a few cells, and the classifier loses to average pooling (docs/guides/classify.md has the numbers). A
    non-local block starts as the identity.

    `dim`: D.
    `classes`: how many.
    `cells`: (h, w).
    `pool`: a name or a value, see `parse_pool`; default "continuous-softmax".
    `hidden`: units of the network that scores cells, and channels inside a non-local block; default 32.
    `largest`: the largest weight that a single cell can have, see `score_bound`; default 0.25; 1 leaves scores free.
    `dropout`: share of the pooled vector that is set to zero in training; default 0.

    >>> head = ClassifierHead(16, 3, (4, 5), "discrete-sparsemax")
    >>> scored = head(torch.randn(2, 4, 5, 16))
    >>> scored.scores.shape, scored.looked.weights.shape
    (torch.Size([2, 3]), torch.Size([2, 20]))
    >>> bool((scored.looked.weights == 1 / 20).all())
    True
    """

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        cells: tuple[int, int],
        pool: str | Kind = "continuous-softmax",
        *,
        hidden: int = 32,
        largest: float = 0.25,
        dropout: float = 0.0,
    ) -> None:
        """Make the layers."""
        super().__init__()
        self.dim, self.cells, self.pool = _check.count("dim", dim), cells, parse_pool(pool)
        self.register_buffer("feature_mean", torch.zeros(dim))
        self.register_buffer("feature_scale", torch.ones(dim))
        self.attention: nn.Module | None = None
        if isinstance(self.pool, NonLocalThenAverage):
            self.attention = NonLocal2d(dim, inner=hidden)
        elif not isinstance(self.pool, Average):
            self.attention = OutputAttention(dim, cells, self.pool, hidden=hidden)
            score = self.attention.pool.score
            for parameter in score[-1].parameters():
                nn.init.zeros_(parameter)
            count = cells[0] * cells[1]
            if 1 / count < _check.number("largest", largest, above=0) < 1:
                score.append(Bounded(score_bound(_alpha(self.pool), count, largest)))
        self.dropout = nn.Dropout(_check.share("dropout", dropout))
        self.linear = nn.Linear(dim, _check.count("classes", classes))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def standardise(self, averages: Tensor) -> None:
        """Set the mean and the scale of the features from pictures' averaged features, (n, D)."""
        averages = averages.double()
        deviation = averages.std(0) if len(averages) > 1 else torch.ones(self.dim, dtype=torch.float64)
        least = float(deviation.mean()) * _LEAST
        self.feature_mean.copy_(averages.mean(0))
        self.feature_scale.copy_(1 / deviation.clamp_min(least if least > 0 else 1.0))

    def forward(self, features: Tensor) -> Scored:
        """Scores of the classes, and what was looked at, for features (B, h, w, D)."""
        _check.floating("features", features, min_dims=4)
        x = (features - self.feature_mean) * self.feature_scale
        looked = self._pooled(x)
        scores = self.linear(self.dropout(looked.context))
        return Scored(scores if scores.dtype == torch.float64 else scores.float(), looked)

    def _pooled(self, x: Tensor) -> Looked:
        if isinstance(self.attention, OutputAttention):
            looked: Looked = self.attention(x.flatten(1, 2))
            return looked
        count = x.shape[1] * x.shape[2]
        if isinstance(self.attention, NonLocal2d):
            grid = x.permute(0, 3, 1, 2).contiguous()
            context = self.attention(grid).flatten(2).mean(-1)
            with torch.no_grad():  # what the average of all queries draws from: for pictures
                weights = self.attention.weights(grid).mean(1) if not self.training else x.new_zeros(len(x), count)
            return Looked(context, weights, weights, None)
        even = x.new_full((len(x), count), 1 / count)
        return Looked(x.flatten(1, 2).mean(1), even, even, None)


def _alpha(pool: Kind) -> float:
    """The alpha of the map from scores to weights: 1 for softmax and for all densities, 2 for sparsemax and TVmax."""
    if not isinstance(pool, Discrete):
        return 1.0
    alpha = entmax_order(named_map(pool.map, (1, 1))[1])
    return 2.0 if alpha is None else alpha
