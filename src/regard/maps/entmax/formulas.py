"""What differs between the maps: weights from differences to a threshold, and Newton's step in it."""

from __future__ import annotations

import math
from typing import Protocol, final

import torch
from torch import Tensor


class RowFormula(Protocol):
    """A map of rows x, whose largest entry is 0, and the threshold lam of each."""

    @property
    def unit(self) -> float:
        """The factor from s - max s to x, chosen so that lam needs none."""

    @property
    def rate(self) -> float:
        """The largest |alpha - 1| of all rows."""

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        """A lower bound of lam by Jensen's inequality, from the mean of x over n entries."""

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        """Write the weights of x - lam into p and return their sum."""

    def step(self, x: Tensor, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the weights, and how far lam moves; overwrites p."""


@final
class SparsemaxFormula:
    """p = [x - lam]_+; this is Michelot's algorithm."""

    unit = 1.0
    rate = 1.0

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        """By Jensen's inequality."""
        return torch.clamp(mean - 1 / n, min=-1)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        """Into p; returns their sum."""
        return torch.sub(x, lam, out=p).clamp_(min=0).sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's."""
        total = self.weights(x, lam, p)
        return total, (total - 1).div_(p.gt_(0).sum(-1, keepdim=True))


@final
class Entmax15Formula:
    """p = [x - lam]_+^2."""

    unit = 0.5
    rate = 0.5

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        """By Jensen's inequality."""
        return torch.clamp(mean - n**-0.5, min=-1)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        """Into p; returns their sum."""
        return torch.sub(x, lam, out=p).clamp_(min=0).square_().sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's."""
        slope = torch.sub(x, lam, out=p).clamp_(min=0).sum(-1, keepdim=True)
        total = p.square_().sum(-1, keepdim=True)
        return total, (total - total.sqrt()).div_(slope)


@final
class ByLogarithm:
    """Any alpha > 0 up to 1 + EDGE, with logarithms so that nothing is lost near one; at one itself this is softmax."""

    unit = 1.0

    def __init__(self, delta: Tensor, rate: float) -> None:
        """`delta`: alpha - 1, a number or one per row; `rate`: its largest magnitude."""
        self.delta, self.rate = delta, rate

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        """By Jensen's inequality."""
        return torch.clamp(mean - torch.expm1(-self.delta * math.log(n)) / self.delta, min=0)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        """Into p; returns their sum."""
        torch.sub(x, lam, out=p).mul_(self.delta).clamp_(min=-1)
        return p.log1p_().div_(self.delta).exp_().sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's."""
        total = self.weights(x, lam, p)
        base = (x - lam).mul_(self.delta).add_(1).clamp_(min=torch.finfo(x.dtype).tiny)
        return total, _norm_step(total, p.div_(base).sum(-1, keepdim=True), self.delta)


@final
class ByEdge:
    """Alpha from 1 + EDGE to 2: p = [delta (x - lam)]_+^(1 / delta), where lam is the edge of the support.

    Differences of neighbours of the edge are exact, which those of 1 + delta (x - lam) in `ByLogarithm` are not: of
    many small weights each would be off by the spacing of numbers near one.
    """

    unit = 1.0

    def __init__(self, delta: Tensor, rate: float) -> None:
        """`delta`: alpha - 1, a number or one per row; `rate`: its largest magnitude."""
        self.delta, self.rate = delta, rate

    def lower_bound(self, mean: Tensor, n: int) -> Tensor:
        """By Jensen's inequality."""
        return torch.maximum(mean - torch.exp(-self.delta * math.log(n)) / self.delta, -1 / self.delta)

    def weights(self, x: Tensor, lam: Tensor, p: Tensor) -> Tensor:
        """Into p; returns their sum."""
        torch.sub(x, lam, out=p).clamp_(min=0).mul_(self.delta)
        return p.log_().div_(self.delta).exp_().sum(-1, keepdim=True)

    def step(self, x: Tensor, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's."""
        total = self.weights(x, lam, p)
        base = (x - lam).mul_(self.delta).clamp_(min=torch.finfo(x.dtype).tiny)
        return total, _norm_step(total, p.div_(base).sum(-1, keepdim=True), self.delta)


def _norm_step(total: Tensor, slope: Tensor, delta: Tensor) -> Tensor:
    """Newton's step on (sum)^delta - 1, from the sum of the weights and that of their slopes."""
    return -total * torch.expm1(-delta * total.log()) / delta / slope
