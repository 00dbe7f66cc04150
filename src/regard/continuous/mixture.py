"""Mixtures of densities: attention in several places at once.

Legend: (...) batch, K components, N basis functions, M nodes, d dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.continuous.basis import Basis
from regard.continuous.density import Density, Ellipse, Elliptical, Interval
from regard.continuous.nodes import edge_of, gauss_legendre, log_of_squared_cosine
from regard.continuous.truncated import PearsonTypeII


class Mixture(Density):
    """p(t) = sum_k pi_k p_k(t): equation (5.22).

    `mixing` (..., K) sums to one; `parts` is a batch (..., K) of Gaussians, paraboloids or other BetaGaussians. A
    component with a mixing weight of exactly zero, as sparsemax gives, does not take part. Differentiable in both.

    >>> from regard.continuous import Gaussian
    >>> two = Gaussian(torch.tensor([[0.0], [4.0]]), torch.ones(2, 1, 1))
    >>> mix = Mixture(torch.tensor([0.75, 0.25]), two)
    >>> mix.mean, mix.covariance, mix.components
    (tensor([1.]), tensor([[4.]]), tensor(2))
    """

    def __init__(self, mixing: Tensor, parts: Elliptical) -> None:
        """`mixing` (..., K) and densities with the batch shape (..., K)."""
        _check.floating("mixing", mixing, min_dims=1)
        if mixing.shape != parts.batch_shape:
            expected = f"{tuple(parts.batch_shape)}, the batch shape of parts"
            _check.complain("mixing", f"shape {tuple(mixing.shape)}", expected, "One weight per component.")
        _check.nonnegative("mixing", mixing)
        self.mixing, self.parts = mixing.to(parts.mean.dtype), parts
        self.mean = (self.mixing.unsqueeze(-2) @ parts.mean).squeeze(-2)

    def __repr__(self) -> str:
        return shown(self, {"mixing": self.mixing, "parts": self.parts})

    @property
    def covariance(self) -> Tensor:  # type: ignore[override]
        """Covariance within the components and between them, (..., d, d)."""
        offset = self.parts.mean - self.mean.unsqueeze(-2)
        between = offset.unsqueeze(-1) * offset.unsqueeze(-2)
        return (self.mixing[..., None, None] * (self.parts.covariance + between)).sum(-3)

    @property
    def components(self) -> Tensor:
        """The number of components with a weight above zero, per example: (...), integers."""
        return (self.mixing > 0).sum(-1)

    @property
    def support(self) -> Interval | Ellipse:
        """The support of each component, (..., K): the mixture's is their union."""
        return self.parts.support

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density at `value` (..., d), which broadcasts with the batch; -inf outside the support."""
        absent = self.mixing == 0
        logs = self.mixing.masked_fill(absent, 1).log().masked_fill(absent, -math.inf)
        terms = logs + self.parts.log_prob(value.unsqueeze(-2))
        outside = (terms == -math.inf).all(-1, keepdim=True)
        return terms.masked_fill(outside, 0).logsumexp(-1).masked_fill(outside.squeeze(-1), -math.inf)

    def pdf_on_grid(self, height: int, width: int) -> Tensor:
        """As `Density.pdf_on_grid`, the components summed."""
        return (self.mixing[..., None, None] * self.parts.pdf_on_grid(height, width)).sum(-3)

    def expect(self, basis: Basis, chords: int | None = None) -> Tensor:
        """r = sum_k pi_k E_k[psi(t)], (..., N)."""
        return (self.mixing.unsqueeze(-2) @ self.parts.expect(basis, chords)).squeeze(-2)

    def entropy(self) -> Tensor:
        """The differential entropy, (...), by quadrature under each component: accurate to three or four digits.

        A mixture's entropy has no closed form. 32 nodes along each dimension; differentiable.
        """
        z, weight = _nodes(self.parts, 32)
        points = self.parts.image(z.reshape(-1, *[1] * self.mixing.dim(), z.shape[-1]), 1.0)
        logs = self.log_prob(points.movedim(-2, 0))
        # The nodes of a component without weight may lie outside the support of all others.
        logs = logs.masked_fill(logs == -math.inf, 0)
        cross = (weight.reshape(-1, *[1] * len(self.batch_shape)) * logs).sum(1).movedim(0, -1)
        return -(self.mixing * cross).sum(-1)

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws, (*sample_shape, ..., d), without gradient."""
        draws = self.parts.sample(sample_shape)
        flat = self.mixing.reshape(-1, self.mixing.shape[-1])
        count = math.prod(sample_shape)
        component = torch.multinomial(flat, count, replacement=True).mT.reshape(*sample_shape, *self.batch_shape)
        return torch.take_along_dim(draws, component[..., None, None], -2).squeeze(-2)


def _nodes(parts: Elliptical, count: int) -> tuple[Tensor, Tensor]:
    """Nodes z (M, d), with t = mean + L z for L L' the covariance, and weights (M,) for expectations under `parts`."""
    d = parts.mean.shape[-1]
    x, w = gauss_legendre(count, parts.mean)
    nodes = torch.cartesian_prod(*[x] * d).reshape(-1, d)
    weight = torch.cartesian_prod(*[w] * d).reshape(-1, d).prod(-1)
    if isinstance(parts, PearsonTypeII):
        # u_i = cos(a_1) ... cos(a_(i-1)) sin(a_i) covers the ball, and 1 - |u|^2 is the product of all squared cosines.
        angle = nodes * math.asin(edge_of(parts.power + 0.5, 7.0))
        cos, sine = angle.cos(), angle.sin()
        before = torch.cat([torch.ones_like(cos[:, :1]), cos.cumprod(-1)[:, :-1]], -1)
        z = before * sine * math.sqrt(d + 2 * parts.power + 2)
        weight = weight * (before * cos).prod(-1) * torch.exp(parts.power * log_of_squared_cosine(sine).sum(-1))
    else:
        z = nodes * 7
        weight = weight * torch.exp(-0.5 * z.square().sum(-1))
    return z, weight / weight.sum()
