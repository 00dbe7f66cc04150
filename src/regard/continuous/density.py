"""Attention densities: what a quadratic score becomes under the regularised prediction maps (5.1).

Legend: (...) batch, M points, d dimensions, N basis functions. Half-precision parameters are kept in float32.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.continuous import _small
from regard.continuous.basis import Basis
from regard.continuous.locations import working_dtype


class Interval(NamedTuple):
    """The support of densities (...) on the line.

    >>> from regard.continuous import Paraboloid
    >>> round(float(Paraboloid(torch.zeros(1), torch.eye(1) / 5).support.high), 4)
    1.0
    """

    low: Tensor
    high: Tensor


class Ellipse(NamedTuple):
    """The support of a density on the plane: half axes (..., 2), the long one first, and the long one's angle (...).

    >>> from regard.continuous import Paraboloid
    >>> Paraboloid(torch.zeros(2), torch.eye(2) / 5).support.axes
    tensor([1.0954, 1.0954])
    """

    centre: Tensor
    axes: Tensor
    angle: Tensor


class Density(ABC):
    """A batch of densities on R^d (5.1). The names are those of `torch.distributions`.

    >>> Gaussian(torch.zeros(3, 2), torch.eye(2).expand(3, 2, 2)).batch_shape
    torch.Size([3])
    """

    mean: Tensor
    covariance: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch."""
        return self.mean.shape[:-1]

    @property
    def event_shape(self) -> torch.Size:
        """(d,)."""
        return self.mean.shape[-1:]

    @property
    def covariance_matrix(self) -> Tensor:
        """The same as `covariance`, (..., d, d)."""
        return self.covariance

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, (..., d)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each coordinate, (..., d)."""
        return self.variance.sqrt()

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density at `value` (..., d), which broadcasts with the batch; -inf outside the support."""

    @abstractmethod
    def expect(self, basis: Basis, chords: int | None = None) -> Tensor:
        """r = E[psi(t)]: (..., N). `chords`: nodes of the quadrature, where there is one; default by dtype."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """The differential (Shannon) entropy, (...)."""

    @abstractmethod
    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws, (*sample_shape, ..., d), without gradient."""

    def pdf(self, t: Tensor) -> Tensor:
        """The density of every member of the batch at the points t (M, d) or (..., M, d): (..., M)."""
        _check.floating("t", t, min_dims=2)
        _check.last_axis("t", t, self.mean.shape[-1], "dimensions")
        points = t.to(self.mean.dtype).movedim(-2, 0)
        if t.dim() == 2:
            points = points.reshape(-1, *[1] * len(self.batch_shape), t.shape[-1])
        return self.log_prob(points).exp().movedim(0, -1)

    def pdf_on_grid(self, height: int, width: int) -> Tensor:
        """The density of every member of the batch at the centres of height x width cells of the unit square.

        (..., height, width), x to the right and y down; as `pdf` at these points, and faster.

        >>> Gaussian(torch.tensor([0.75, 0.25]), 0.01 * torch.eye(2)).pdf_on_grid(2, 2)[0, 1]
        tensor(15.9155)
        """
        y, x = ((torch.arange(n, device=self.mean.device) + 0.5) / n for n in (height, width))
        points = torch.cartesian_prod(y, x).flip(-1)
        grid: Tensor = self.pdf(points.float()).unflatten(-1, (height, width))
        return grid

    def _repr_png_(self) -> bytes | None:
        """The picture that a notebook shows, or None without matplotlib.

        `regard.show` is a layer above this one and needs matplotlib, which the core does not: it is imported by name,
        and only when a notebook asks for the picture.
        """
        try:
            png: bytes | None = importlib.import_module("regard.show").png(self)
        except ImportError:
            return None
        return png


class Elliptical(Density):
    """A density that is a function of the Mahalanobis distance to its mean."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        """`mean` (..., d) and `covariance` (..., d, d) of the density itself, whatever its family."""
        _check.floating("mean", mean, min_dims=1)
        _check.floating("covariance", covariance, min_dims=2)
        d = mean.shape[-1]
        if covariance.shape != (*mean.shape, d):
            expected = f"{(*mean.shape, d)}, as mean has shape {tuple(mean.shape)}"
            _check.complain("covariance", f"shape {tuple(covariance.shape)}", expected, "Expand one of the two.")
        _check.finite("mean", mean)
        _check.covariance("covariance", covariance)
        dtype = working_dtype(torch.promote_types(mean.dtype, covariance.dtype))
        self.mean, self.covariance = mean.to(dtype), covariance.to(dtype)

    def _distance(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The squared Mahalanobis distance of `value`, and log det covariance."""
        inverse, logdet = _small.inverse_and_logdet(self.covariance)
        return _small.quadratic(value - self.mean, inverse), logdet

    @abstractmethod
    def _log_of(self, distance: Tensor, logdet: Tensor) -> Tensor:
        """The log-density at points with this squared Mahalanobis distance; `logdet` is log det covariance."""

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density at `value` (..., d), which broadcasts with the batch; -inf outside the support."""
        return self._log_of(*self._distance(value))

    def pdf_on_grid(self, height: int, width: int) -> Tensor:
        """As `Density.pdf_on_grid`: rows and columns are multiplied out once, not point by point."""
        if self.mean.shape[-1] != 2:
            return super().pdf_on_grid(height, width)
        inverse, logdet = (part[..., None, None] for part in _small.inverse_and_logdet(self.covariance))
        xx, xy, yy = inverse[..., 0, 0, :, :], inverse[..., 0, 1, :, :], inverse[..., 1, 1, :, :]
        along, down = (
            (torch.arange(n, device=self.mean.device, dtype=self.mean.dtype) + 0.5) / n for n in (width, height)
        )
        x = along - self.mean[..., :1, None]
        y = down[:, None] - self.mean[..., 1:, None]
        return self._log_of(torch.addcmul(yy * y.square(), x, xx * x + 2 * xy * y), logdet).exp()

    def _check_basis(self, basis: Basis) -> None:
        """The basis has the dimension of the density."""
        if basis.dimensions != self.mean.shape[-1]:
            d = self.mean.shape[-1]
            _check.complain("basis", f"a basis in {basis.dimensions} dimensions", f"{d}", "Use on_grid or on_line.")

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws, (*sample_shape, ..., d), without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    @abstractmethod
    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws that are differentiable in mean and covariance, (*sample_shape, ..., d)."""

    @property
    @abstractmethod
    def support(self) -> Interval | Ellipse:
        """The interval or ellipse outside which the density is zero, in one or two dimensions."""

    def __repr__(self) -> str:
        return shown(self, {"mean": self.mean, "cov": self.covariance})

    def image(self, u: Tensor, scale: float) -> Tensor:
        """mean + A u with A A^T = scale covariance."""
        return self.mean + (_small.cholesky(scale * self.covariance) @ u.unsqueeze(-1)).squeeze(-1)


class Gaussian(Elliptical):
    """N(mean, covariance): the map of a quadratic score for alpha = 1, continuous softmax: equation (5.3).

    Differentiable in both parameters. `expect` is closed form with a Gaussian or Fourier basis in any dimension, and
    chord quadrature with a paraboloid basis.

    >>> density = Gaussian(torch.zeros(3, 2), torch.eye(2).expand(3, 2, 2))
    >>> density.pdf(torch.zeros(1, 2))[0]
    tensor([0.1592])
    """

    @property
    def support(self) -> Interval | Ellipse:
        """All of the line or of the plane."""
        return support_of(self.mean, self.covariance, math.inf)

    def _log_of(self, distance: Tensor, logdet: Tensor) -> Tensor:
        return torch.add(-0.5 * (logdet + self.mean.shape[-1] * math.log(2 * math.pi)), distance, alpha=-0.5)

    def expect(self, basis: Basis, chords: int | None = None) -> Tensor:
        """r = E[psi(t)]: (..., N)."""
        self._check_basis(basis)
        return basis.under_gaussian(self.mean, self.covariance, chords)

    def entropy(self) -> Tensor:
        """log det(2 pi e covariance) / 2, (...)."""
        _, logdet = _small.inverse_and_logdet(self.covariance)
        return 0.5 * (logdet + self.mean.shape[-1] * math.log(2 * math.pi * math.e))

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws that are differentiable in mean and covariance, (*sample_shape, ..., d)."""
        return self.image(normal_like(self.mean, sample_shape), 1.0)


def support_of(mean: Tensor, covariance: Tensor, ratio: float) -> Interval | Ellipse:
    """The interval or ellipse with squared half axes `ratio` times the variances."""
    d = mean.shape[-1]
    if d == 1:
        half = covariance[..., 0].sqrt() * math.sqrt(ratio)
        return Interval((mean - half)[..., 0], (mean + half)[..., 0])
    if d > 2:
        _check.complain("support", f"{d} dimensions", "1 or 2", "Take the eigenvectors of covariance instead.")
    long, short, angle = _small.axes_and_angle(covariance)
    return Ellipse(mean, torch.stack([long, short], -1) * math.sqrt(ratio), angle)


def normal_like(mean: Tensor, sample_shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, (*sample_shape, ..., d)."""
    return torch.randn(*sample_shape, *mean.shape, dtype=mean.dtype, device=mean.device)
