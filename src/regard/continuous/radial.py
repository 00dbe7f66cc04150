"""Radial basis functions: Gaussians, as in the thesis, and truncated paraboloids, its future work.

Legend: N functions, d dimensions, (...) any batch.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from regard import _check
from regard._torch import with_values
from regard.continuous import _small
from regard.continuous._gamma import ball_constant
from regard.continuous._jacobian import Jacobians, with_jacobian
from regard.continuous.basis import Basis, only_one_or_two
from regard.continuous.overlap import ellipse_ellipse
from regard.continuous.paraboloid import paraboloid_gaussian
from regard.continuous.quadrature import ellipse_gaussian

# Standard deviation in units of the spacing between centres: narrower bumps leave gaps, wider ones are ill-conditioned.
_DEFAULT_WIDTH = 0.6


class RadialBasis(Basis):
    """Centres (N, d) and the covariance of each bump, shared or not."""

    def __init__(self, centres: Tensor, covariance: float | Tensor) -> None:
        """`covariance`: a number (isotropic), (d,) (diagonal), (d, d) (full), or (N, d), (N, d, d), one for each."""
        _check.floating("centres", centres)
        if centres.dim() != 2 or 0 in centres.shape:
            _check.complain("centres", f"shape {tuple(centres.shape)}", "(N, d), not empty", "One row per function.")
        n, d = centres.shape
        spread = torch.as_tensor(covariance, dtype=torch.float64, device=centres.device)
        allowed = {(): (1,), (d,): (1, d), (n, d): (n, d), (d, d): (1, d, d), (n, d, d): (n, d, d)}
        if tuple(spread.shape) not in allowed:
            expected = "a number, (d,), (d, d), (N, d) or (N, d, d)"
            _check.complain("covariance", f"shape {tuple(spread.shape)}", expected, f"Here N = {n} and d = {d}.")
        spread = spread.reshape(allowed[tuple(spread.shape)])
        if spread.dim() < 3:
            spread = torch.diag_embed(spread.expand(-1, d) if spread.dim() == 2 else spread.unsqueeze(-1).expand(-1, d))
        _check.covariance("covariance", spread)
        super().__init__({"centres": centres, "covariance": spread})

    @classmethod
    def on_grid(cls, height: int, width: int, variance: float | None = None) -> Self:
        """height x width centres spread evenly over the unit square, ends included, all with the same `variance`.

        Default variance: the standard deviation along each axis is 0.6 times the spacing of the centres.
        """
        with with_values():
            return cls._spread((height, width), variance)

    @classmethod
    def on_line(cls, length: int, variance: float | None = None) -> Self:
        """`length` centres spread evenly over the unit interval, ends included."""
        with with_values():
            return cls._spread((length,), variance)

    @classmethod
    def _spread(cls, shape: tuple[int, ...], variance: float | None) -> Self:
        for n in shape:
            _check.count("the number of centres along an axis", n)
        axes = [torch.linspace(0, 1, n, dtype=torch.float64) if n > 1 else torch.full((1,), 0.5) for n in shape]
        centres = torch.cartesian_prod(*(a.double() for a in axes)).reshape(-1, len(shape)).flip(-1)
        if variance is None:
            sides = [_DEFAULT_WIDTH / max(n - 1, 1) for n in reversed(shape)]
            return cls(centres, torch.tensor(sides, dtype=torch.float64).square())
        return cls(centres, _check.number("variance", variance, above=0))

    @property
    def centres(self) -> Tensor:
        """(N, d), in float64."""
        return self._tensors["centres"]

    @property
    def covariance(self) -> Tensor:
        """(N or 1, d, d), in float64."""
        return self._tensors["covariance"]

    @property
    def dimensions(self) -> int:
        """The dimension d of the space."""
        return self.centres.shape[1]

    def __len__(self) -> int:
        """The number N of functions."""
        return self.centres.shape[0]

    def _distance(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """The squared Mahalanobis distance (..., N) of t (..., d) to each centre, and log det covariance (N or 1,)."""
        tensors = self.like(t)
        inverse, logdet = _small.inverse_and_logdet(tensors["covariance"])
        offset = t.to(inverse.dtype).unsqueeze(-2) - tensors["centres"]
        return (_small.transform(offset, inverse) * offset).sum(-1), logdet


class GaussianBasis(RadialBasis):
    """psi_j(t) = N(t; m_j, S_j): equation (5.8).

    Expectations are closed form under a Gaussian in any dimension (5.9), and under a paraboloid in one (5.14); under
    other truncated densities, and in two dimensions, they are chord quadrature (5.13). Differentiable in the mean and
    covariance of the density.

    >>> basis = GaussianBasis.on_grid(10, 10, variance=1e-3)
    >>> len(basis), basis(torch.rand(5, 2)).shape
    (100, torch.Size([5, 100]))
    """

    def __call__(self, t: Tensor) -> Tensor:
        """psi(t): (..., d) -> (..., N)."""
        _check.finite("t", t)
        distance, logdet = self._distance(t)
        return torch.exp(-0.5 * (distance + logdet + self.dimensions * math.log(2 * math.pi))).to(t.dtype)

    def under_gaussian(self, mean: Tensor, covariance: Tensor, chords: int | None = None) -> Tensor:
        """N(mean; m_j, covariance + S_j), equation (5.9). There is no quadrature, so `chords` must be None."""
        _no_chords(chords)
        tensors = self.like(mean)
        inverse, logdet = _small.inverse_and_logdet(covariance.unsqueeze(-3) + tensors["covariance"])
        offset = mean.unsqueeze(-2) - tensors["centres"]
        distance = (_small.transform(offset, inverse) * offset).sum(-1)
        return torch.exp(-0.5 * (distance + logdet + self.dimensions * math.log(2 * math.pi)))

    def under_ball(self, mean: Tensor, covariance: Tensor, p: float, chords: int | None = None) -> Tensor:
        """Equation (5.13), with dr/dmean = E_p[grad psi] and dr/dcovariance = E_p*[hess psi] / 2 (5.11)."""
        only_one_or_two("a truncated density with a Gaussian basis", self.dimensions)
        tensors = self.like(mean)

        def compute(mean: Tensor, covariance: Tensor) -> Jacobians:
            offset = mean.unsqueeze(-2) - tensors["centres"]
            r, slope, curvature = ellipse_gaussian(
                offset, covariance.unsqueeze(-3), tensors["covariance"], p, p + 1, chords
            )
            return r, slope, curvature / 2

        return with_jacobian(compute, mean, covariance)


class ParaboloidBasis(RadialBasis):
    """psi_j(t) = TP(t; m_j) with covariance S_j, a truncated paraboloid: equation (5.10).

    It is zero outside an ellipse, so that only the functions near a density contribute. Expectations are by chord
    quadrature: under a Gaussian with the roles exchanged (5.31), under a paraboloid over the overlap of two ellipses
    (5.17); in one and two dimensions, in float64, and right for densities of every size and axis ratio.

    >>> ParaboloidBasis.on_line(3, variance=0.01)(torch.tensor([[0.5]])).argmax().item()
    1
    """

    def __call__(self, t: Tensor) -> Tensor:
        """psi(t): (..., d) -> (..., N)."""
        _check.finite("t", t)
        d = self.dimensions
        distance, logdet = self._distance(t)
        peak = ball_constant(d, 1) * torch.exp(-0.5 * (logdet + d * math.log(d + 4)))
        height = 1 - distance / (d + 4)
        return (peak * torch.where(height > 0, height, 0.0)).to(t.dtype)

    def under_gaussian(self, mean: Tensor, covariance: Tensor, chords: int | None = None) -> Tensor:
        """Equation (5.31): the ellipse is the basis function's, the Gaussian is the density."""
        only_one_or_two("a truncated basis", self.dimensions)
        tensors = self.like(mean.double())

        def compute(mean: Tensor, covariance: Tensor) -> Jacobians:
            offset = tensors["centres"] - mean.double().unsqueeze(-2)
            r, slope, curvature = paraboloid_gaussian(
                offset, tensors["covariance"], covariance.double().unsqueeze(-3), chords
            )
            # Moving the Gaussian is moving the ellipse the other way, and a Gaussian solves the heat equation.
            return r.to(mean.dtype), -slope.to(mean.dtype), (curvature / 2).to(mean.dtype)

        return with_jacobian(compute, mean, covariance)

    def under_ball(self, mean: Tensor, covariance: Tensor, p: float, chords: int | None = None) -> Tensor:
        """Equation (5.17)."""
        only_one_or_two("a truncated basis", self.dimensions)
        tensors = self.like(mean.double())

        def compute(mean: Tensor, covariance: Tensor) -> Jacobians:
            offset = mean.double().unsqueeze(-2) - tensors["centres"]
            spread = covariance.double().unsqueeze(-3)
            r, slope, curvature = ellipse_ellipse(offset, spread, tensors["covariance"], p, chords)
            return r.to(mean.dtype), slope.to(mean.dtype), curvature.to(mean.dtype)

        return with_jacobian(compute, mean, covariance)


def _no_chords(chords: int | None) -> None:
    if chords is not None:
        _check.complain("chords", chords, "None: this expectation is closed form", "Leave it out.")
