"""The Fenchel-Young loss of a density: continuous attention supervised by a region (docs/math.md, 3.3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.continuous import _small
from regard.continuous._gamma import log_ball_constant
from regard.continuous.density import Density, Elliptical, Gaussian
from regard.continuous.locations import Locations
from regard.continuous.moments import moments, prepare
from regard.continuous.truncated import BetaGaussian
from regard.losses.scores import Reduction, check_reduction, negative_tsallis, reduce_loss


def density_loss(density: Density, target: Tensor, locations: Locations, *, reduction: Reduction = "mean") -> Tensor:
    """Fenchel-Young loss of an attention density against a region: Omega*(f) + Omega(q) - E_q[f] (docs/math.md, 3.3).

    f is the quadratic score that the density is the map of, and q is constant on each cell of the region. For a
    Gaussian it is the Kullback-Leibler divergence of q to it.

    `density`: a batch (...) of `Gaussian`, `Paraboloid` or `BetaGaussian`, as from `match_moments` or `from_canonical`.
    `target`: (..., L), a boolean region, True inside, or weights >= 0, which are divided by their sum; its leading axes
    broadcast with the batch. An empty region is left out.
    `locations`: the L cells of the target, a `grid` or a `line`, at any resolution.
    `reduction`: "mean" (default) over regions that are not empty, "sum", or "none", a loss per density.

    Closed form, and never negative. It is least, in the family, where the density has the mean and the covariance of
    the region. Differentiable any number of times in the density's parameters and in a float target; the gradient in
    the canonical parameters of the score is E_p[t, t t'] - E_q[t, t t'] (3.4), which a region far from the support of a
    sparse density has too.

    >>> from regard.continuous import grid, match_moments
    >>> cells = grid(4, 4)
    >>> region = torch.zeros(1, 16, dtype=torch.bool)
    >>> region[0, [0, 1, 4, 5]] = True
    >>> far, near = (match_moments(w / w.sum(), cells, 2) for w in (~region + 0.01, region + 0.01))
    >>> density_loss(far, region, cells), density_loss(near, region, cells)
    (tensor(2.2735), tensor(0.3674))
    """
    check_reduction(reduction)
    if not isinstance(density, (Gaussian, BetaGaussian)):
        expected = "a Gaussian, a Paraboloid or a BetaGaussian"
        _check.complain("density", type(density).__name__, expected, "A mixture is the map of no score.", TypeError)
    w = _weights(target, locations, density.mean.dtype)
    where = locations.to(density.mean)
    _check_shapes(density, w, where)
    mean, covariance = moments(w, where)
    inverse, _ = _small.inverse_and_logdet(density.covariance)
    offset = mean - density.mean
    # tr(Var^-1 E_q[(t - mu) (t - mu)']): d where the moments agree.
    spread = _small.quadratic(offset, inverse) + (inverse * covariance).sum((-2, -1))
    alpha = density.alpha if isinstance(density, BetaGaussian) else 1.0
    volume = where.sides.prod()
    slope, regularizer = _own(density, alpha)
    omega = volume * negative_tsallis(w / volume, -1, alpha)
    loss = slope * (spread - density.mean.shape[-1]) / 2 - regularizer + omega
    some = (w.sum(-1) > 0).expand(loss.shape)
    return reduce_loss(loss, some, reduction)


def _own(density: Elliptical, alpha: float) -> tuple[Tensor, Tensor]:
    """The factor of Var^-1 in the inverse Sigma of the score, and Omega of the density: equations (3.5) and (3.6)."""
    d = density.mean.shape[-1]
    _, logdet = _small.inverse_and_logdet(density.covariance)
    if alpha == 1:
        return torch.ones_like(logdet), -0.5 * (logdet + d * math.log(2 * math.pi * math.e))
    delta = alpha - 1
    ratio = d + 2 / delta + 2
    # The logarithm of the integral of p^alpha: of the order of delta, so that nothing cancels near alpha = 1.
    power = math.log1p(-d / ratio) + delta * (log_ball_constant(d, 1 / delta) - 0.5 * (logdet + d * math.log(ratio)))
    return power.exp() / alpha, torch.expm1(power) / (alpha * delta)


def _weights(target: Tensor, locations: Locations, dtype: torch.dtype) -> Tensor:
    """The target as weights that sum to one, or a row of zeros."""
    if not isinstance(locations, Locations) or (
        _check.readable_at_once(locations.sides) and not bool((locations.sides > 0).all())
    ):
        got = "bare points" if isinstance(locations, (Locations, Tensor)) else type(locations).__name__
        remedy = "Make them with regard.continuous.grid or line."
        _check.complain("locations", got, "cells with sides, over which a region is spread", remedy)
    if isinstance(target, Tensor) and target.dtype == torch.bool:
        target = target.to(dtype)
    _check.floating("target", target, min_dims=1)
    _check.last_axis("target", target, len(locations), "cells")
    _check.nonnegative("target", target, "Pass a boolean region, or weights.")
    return prepare(target.to(dtype), locations, None)


def _check_shapes(density: Elliptical, w: Tensor, where: Locations) -> None:
    d = density.mean.shape[-1]
    if where.dimensions != d:
        _check.complain("locations", f"{where.dimensions} dimensions", f"{d}, as the density has", "Use grid or line.")
    try:
        torch.broadcast_shapes(density.batch_shape, w.shape[:-1])
    except RuntimeError:
        expected = f"leading axes that broadcast with the batch {tuple(density.batch_shape)}"
        _check.complain("target", f"shape {tuple(w.shape)}", expected, "Flatten grids to one axis of cells.")
