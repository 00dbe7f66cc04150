"""From weights, scores or a network's free parameters to one density.

Legend: (...) batch, L locations, d dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.continuous import _small
from regard.continuous._gamma import log_ball_constant
from regard.continuous.density import Elliptical, Gaussian
from regard.continuous.locations import Locations, as_locations, working_dtype
from regard.continuous.truncated import BetaGaussian, Paraboloid, check_alpha, power_of


def density_of(mean: Tensor, covariance: Tensor, alpha: float) -> Elliptical:
    """The density of the family `alpha`, a number from 1 to 3, with that mean and covariance."""
    if check_alpha(alpha) == 1:
        return Gaussian(mean, covariance)
    return Paraboloid(mean, covariance) if alpha == 2 else BetaGaussian(mean, covariance, alpha)


def prepare(weights: Tensor, locations: Locations, mask: Tensor | None) -> Tensor:
    """Checked weights in the working dtype, zero where masked, that sum to one; a row of zeros stays a row of zeros."""
    _check.floating("weights", weights, min_dims=1)
    _check.last_axis("weights", weights, len(locations), "locations")
    _check.nonnegative("weights", weights)
    w = weights.to(working_dtype(weights.dtype))
    if mask is not None:
        _check.boolean_mask(mask, weights.shape, "weights")
        w = w.masked_fill(~mask, 0)
    total = w.sum(-1, keepdim=True)
    return w / total.masked_fill(total == 0, 1)


def match_moments(
    weights: Tensor, locations: Locations | Tensor, alpha: float = 1, mask: Tensor | None = None
) -> Elliptical:
    """The density of family `alpha` with the mean and covariance of discrete weights: equation (5.2), Algorithm 2.

    `weights`: (..., L), nonnegative; divided by their sum.
    `locations`: where they are, L of them; an (L, d) tensor is taken as bare points.
    `alpha`: family of the density, 1 (Gaussian), 2 (paraboloid) or any number between 1 and 3; default 1.
    `mask`: boolean, broadcasts to weights, True = takes part; default None, every location does.

    Returns a batch (...) of densities, differentiable in the weights. The variance inside a cell is added, so that the
    covariance is that of the piecewise constant density and one-hot weights are no special case. A row without any
    weight gets the mean zero and the variance of one cell.

    >>> from regard.continuous import grid
    >>> match_moments(torch.full((1, 16), 1 / 16), grid(4, 4)).variance       # uniform on the unit square: 1/12
    tensor([[0.0833, 0.0833]])
    """
    where = as_locations(locations)
    w = prepare(weights, where, mask)
    return density_of(*moments(w, where.to(w)), alpha)


def moments(w: Tensor, where: Locations) -> tuple[Tensor, Tensor]:
    """Mean (..., d) and covariance (..., d, d), within-cell variance included, of weights (..., L) that sum to one."""
    # Centred before squaring: E[t t'] - mu mu' would lose four of float32's seven digits. And with the middle of the
    # locations as origin, so that nothing is lost far from zero.
    points = where.points - where.middle
    centre = w @ points
    offset = points - centre.unsqueeze(-2)
    spread = (w.unsqueeze(-1) * offset).mT @ offset
    weighed = (w != 0).any(-1, keepdim=True)
    return centre + where.middle * weighed, spread + where.within


def from_canonical(linear: Tensor, quadratic: Tensor, alpha: float = 1) -> Elliptical:
    """The map of the score f(t) = linear . t + t' quadratic t: equations (5.3), (5.4) and (5.6).

    `linear` = Sigma^-1 mu (..., d) and `quadratic` = -Sigma^-1 / 2 (..., d, d), symmetric and negative definite, in any
    number of dimensions: f(t) = b . t - t' A t / 2 is `from_canonical(b, -A / 2, alpha)`. `alpha`: as in
    `match_moments`; default 1. Differentiable in both tensors. Peaked densities lose digits in this parametrisation:
    prefer `match_moments` or `from_cholesky`.

    >>> from_canonical(torch.zeros(1), -torch.eye(1) / 2).covariance
    tensor([[1.]])
    """
    _check.floating("linear", linear, min_dims=1)
    _check.floating("quadratic", quadratic, min_dims=2)
    dtype = working_dtype(torch.promote_types(linear.dtype, quadratic.dtype))
    scale, logdet = _small.inverse_and_logdet(-2 * quadratic.to(dtype))
    mean = (scale @ linear.to(dtype).unsqueeze(-1)).squeeze(-1)
    if check_alpha(alpha) == 1:
        return Gaussian(mean, scale)
    d, p = linear.shape[-1], power_of(alpha)
    # The log of the squared radius of the support in units of Sigma^(1/2), from p(t) integrating to one.
    log_radius = (log_ball_constant(d, p) + p * math.log(2 * p) + 0.5 * logdet) * 2 / (2 * p + d)
    return density_of(mean, scale * (log_radius.exp() / (d + 2 * p + 2))[..., None, None], alpha)


def from_cholesky(mean: Tensor, factor: Tensor, alpha: float = 1, floor: float = 0.0) -> Elliptical:
    """The density with that mean and covariance L L' + floor I, L the lower triangle of `factor`.

    An unconstrained parametrisation, for a network to predict. Differentiable in both tensors.

    `mean`: (..., d).
    `factor`: (..., d, d); the upper triangle is ignored, and the diagonal may have any sign.
    `alpha`: family of the density, as in `match_moments`; default 1.
    `floor`: added to every variance; a positive one keeps the covariance regular for every factor; default 0.

    >>> from_cholesky(torch.zeros(2), torch.tensor([[2.0, 0.0], [1.0, 1.0]])).covariance
    tensor([[4., 2.],
            [2., 2.]])
    """
    _check.floating("mean", mean, min_dims=1)
    _check.floating("factor", factor, min_dims=2)
    _check.number("floor", floor, at_least=0)
    lower = factor.to(working_dtype(factor.dtype)).tril()
    return density_of(mean, lower @ lower.mT + floor * torch.eye(factor.shape[-1]).to(lower), alpha)
