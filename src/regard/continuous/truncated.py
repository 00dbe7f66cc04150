"""Densities that are zero outside an ellipsoid: the maps of a quadratic score for every alpha above one.

Legend: (...) batch, d dimensions, p the power.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.continuous import _small
from regard.continuous._gamma import digamma_difference, log_ball_constant
from regard.continuous.basis import Basis
from regard.continuous.density import Ellipse, Elliptical, Interval, normal_like, support_of

LARGEST_ALPHA = 3


class PearsonTypeII(Elliptical):
    """(1 - |u|^2)^p on an ellipsoid, for any power p > -1: equation (5.5). The uniform density for p = 0.

    `mean` and `covariance` are those of the density. Differentiable in both. `expect` is closed form with a Fourier
    basis in any dimension, and with a Gaussian basis in one for p = 0, 1, 2 and 3; otherwise quadrature, in one and two
    dimensions.

    >>> PearsonTypeII(torch.zeros(1), torch.eye(1) / 3, power=0).support.high        # uniform on [-1, 1]
    tensor(1.0000)
    """

    def __init__(self, mean: Tensor, covariance: Tensor, power: float) -> None:
        """`mean` (..., d), `covariance` (..., d, d), `power` above -1."""
        super().__init__(mean, covariance)
        self.power = _check.number("power", power, above=-1)

    def __repr__(self) -> str:
        return shown(self, {"mean": self.mean, "cov": self.covariance, "power": self.power})

    @property
    def _ratio(self) -> float:
        """The squared half axes over the variances."""
        return self.mean.shape[-1] + 2 * self.power + 2

    @property
    def support(self) -> Interval | Ellipse:
        """The interval or ellipse outside which the density is zero."""
        return support_of(self.mean, self.covariance, self._ratio)

    def _log_of(self, distance: Tensor, logdet: Tensor) -> Tensor:
        d = self.mean.shape[-1]
        inside = distance / self._ratio
        outside = inside >= 1
        shape = self.power * torch.log1p(-inside.masked_fill(outside, 0))
        level = log_ball_constant(d, self.power) - 0.5 * (logdet + d * math.log(self._ratio))
        return (shape + level).masked_fill(outside, -math.inf)

    def expect(self, basis: Basis, chords: int | None = None) -> Tensor:
        """r = E[psi(t)]: (..., N)."""
        self._check_basis(basis)
        return basis.under_ball(self.mean, self.covariance, self.power, chords)

    def entropy(self) -> Tensor:
        """The Shannon entropy, (...): |u|^2 has a beta distribution, whose logarithmic moment is known (5.29)."""
        d, p = self.mean.shape[-1], self.power
        _, logdet = _small.inverse_and_logdet(self._ratio * self.covariance)
        return 0.5 * logdet - log_ball_constant(d, p) + p * digamma_difference(p + 1, d)

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws that are differentiable in mean and covariance, (*sample_shape, ..., d)."""
        direction = torch.nn.functional.normalize(normal_like(self.mean, sample_shape), dim=-1)
        # |u|^2 has the distribution Beta(d / 2, p + 1).
        first, second = direction.new_tensor(self.mean.shape[-1] / 2), direction.new_tensor(self.power + 1.0)
        radius = torch.distributions.Beta(first, second).sample(direction.shape[:-1]).sqrt()
        return self.image(direction * radius.unsqueeze(-1), self._ratio)


class BetaGaussian(PearsonTypeII):
    """The map of a quadratic score for 1 < alpha <= 3 (5.4): PearsonTypeII with p = 1/(alpha-1).

    `mean` and `covariance` are those of the density; `scale` is the Sigma of the score -(t-mu)' Sigma^-1 (t-mu)/2 that
    it is the map of (Theorem 1, equation (5.6)). As alpha goes to one it becomes the Gaussian. Differentiable in both.

    >>> BetaGaussian(torch.zeros(1), torch.eye(1), alpha=1.5).support.high.square()      # (d + 2 p + 2) covariance
    tensor(7.0000)
    """

    def __init__(self, mean: Tensor, covariance: Tensor, alpha: float) -> None:
        """`mean` (..., d), `covariance` (..., d, d)."""
        super().__init__(mean, covariance, power_of(alpha))
        self.alpha = alpha

    def __repr__(self) -> str:
        return shown(self, {"mean": self.mean, "cov": self.covariance, "alpha": self.alpha})

    @property
    def scale(self) -> Tensor:
        """The matrix Sigma of the score function, (..., d, d): equation (5.6)."""
        d, p = self.mean.shape[-1], self.power
        _, logdet = _small.inverse_and_logdet(self._ratio * self.covariance)
        log_radius = (log_ball_constant(d, p) - 0.5 * logdet) / p + math.log(2 * p)
        return self._ratio * self.covariance / log_radius.exp()[..., None, None]


class Paraboloid(BetaGaussian):
    """The truncated paraboloid (5.4), alpha = 2, continuous sparsemax: BetaGaussian with p = 1.

    >>> Paraboloid(torch.zeros(2), torch.eye(2)).support.axes
    tensor([2.4495, 2.4495])
    """

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        """`mean` (..., d), `covariance` (..., d, d)."""
        super().__init__(mean, covariance, 2)

    def __repr__(self) -> str:
        return Elliptical.__repr__(self)


def check_alpha(alpha: float) -> float:
    """A plain number from 1 to 3."""
    remedy = "1 is the Gaussian, 2 the paraboloid; a learned alpha is not supported here."
    if _check.number("alpha", alpha, at_least=1, remedy=remedy) > LARGEST_ALPHA:
        _check.complain("alpha", alpha, f"a number from 1 to {LARGEST_ALPHA}", remedy)
    return alpha


def power_of(alpha: float) -> float:
    """p = 1 / (alpha - 1) for alpha in (1, 3]; a whole number where it is one but for rounding."""
    if check_alpha(alpha) == 1:
        _check.complain("alpha", alpha, f"a number above 1, up to {LARGEST_ALPHA}", "Gaussian is the density for 1.")
    power = 1 / (alpha - 1)
    return float(round(power)) if abs(power - round(power)) < 1e-9 * power else power
