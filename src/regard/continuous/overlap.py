"""Expectations of truncated paraboloids under (1 - |u|^2)^p on an ellipse: polynomials on an overlap of two ellipses.

Legend: N basis functions, Q outer nodes, R inner nodes, d dimensions (1 or 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.continuous import _small
from regard.continuous.bessel import ball_constant
from regard.continuous.quadrature import Moments, gauss_legendre

_NODES = {torch.float32: 48, torch.float64: 96}


def ellipse_ellipse(offset: Tensor, ellipse: Tensor, basis: Tensor, p: int, chords: int | None) -> Moments:
    """r = E_p[psi], dr/dmean and dr/dcovariance for psi a normalised truncated paraboloid: equation (5.17).

    `offset`: mean of the density less the centre of psi, (..., N, d).
    `ellipse`: covariance of the density, (..., 1, d, d).
    `basis`: covariance of psi, (N or 1, d, d).
    `p`: power of the density.
    `chords`: nodes across; default 48 in float32, 96 in float64.

    Returns (..., N), (..., N, d), (..., N, d, d). Along a chord the integrand is a polynomial and a few Gauss-Legendre
    nodes are exact; across, it has kinks of high order where the two ellipses cross, so the error falls like a power of
    the number of chords: by default in float64 near 1e-8 of the largest value, and 1e-6 for thin slanted ellipses.
    """
    d = offset.shape[-1]
    k = d + 2 * p + 2
    out = _small.cholesky(k * ellipse)
    into = _small.lower_inverse(_small.cholesky((d + 4) * basis))
    # t = mu + A u is inside psi when |T u + e| <= 1. A and B are lower triangular, so T is, and u1 alone decides z1.
    to_z, e = into @ out, _small.transform(offset, into.mT)
    peak = ball_constant(d, 1) * into.diagonal(dim1=-2, dim2=-1).prod(-1)
    u, z, weight = _overlap_nodes(to_z, e, p, chords)
    weight = weight * ball_constant(d, p)
    value = (weight * (1 - z.square().sum(-1))).sum((-1, -2))
    weighted = (weight.unsqueeze(-1) * z).flatten(-3, -2)
    mean_z = weighted.sum(-2)
    cross = u.flatten(-3, -2).mT @ weighted
    by_mean = _small.transform(mean_z * (-2 * peak.unsqueeze(-1)), into)
    # dA = dVar Var^-1 A / 2 turns E_p[grad psi (dA u)^T] into a gradient in Var: A^-T E_p[u grad psi^T], symmetrised.
    by_covariance = _small.lower_inverse(out).mT @ cross @ into * (-k * peak[..., None, None])
    return value * peak, by_mean, (by_covariance + by_covariance.mT) / 2


def _overlap_nodes(to_z: Tensor, e: Tensor, p: int, chords: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Points u, z (..., N, Q, R, d) of the overlap and their weights (..., N, Q, R), which include the density."""
    x, w = gauss_legendre(p + 3, e)
    if e.shape[-1] == 1:
        slope, shift = to_z[..., 0, 0], e[..., 0]
        low, high = ((-1 - shift) / slope).clamp(-1, 1), ((1 - shift) / slope).clamp(-1, 1)
        u = ((low + high) / 2)[..., None, None] + ((high - low) / 2)[..., None, None] * x
        weight = ((high - low) / 2)[..., None, None] * w * (1 - u * u) ** p
        return u.unsqueeze(-1), (slope[..., None, None] * u + shift[..., None, None]).unsqueeze(-1), weight
    t11, t21, t22 = (to_z[..., i, j].unsqueeze(-1) for i, j in ((0, 0), (1, 0), (1, 1)))
    e1, e2 = e[..., :1], e[..., 1:]
    low, high = ((-1 - e1) / t11).clamp(-1, 1), ((1 - e1) / t11).clamp(-1, 1)
    y, v = gauss_legendre(chords or _NODES[e.dtype], e)
    # The substitution by a sine removes the square roots at both ends.
    half = (high - low) / 2
    u1 = (high + low) / 2 + half * (torch.pi / 2 * y).sin()
    z1 = t11 * u1 + e1
    half_u, half_z = (1 - u1 * u1).clamp_min(0).sqrt(), (1 - z1 * z1).clamp_min(0).sqrt()
    middle = -(t21 * u1 + e2) / t22
    bottom = torch.maximum(-half_u, middle - half_z / t22)
    top = torch.minimum(half_u, middle + half_z / t22)
    length = (top - bottom).clamp_min(0) / 2
    u2 = ((top + bottom) / 2).unsqueeze(-1) + length.unsqueeze(-1) * x
    u = torch.stack([u1.unsqueeze(-1).expand_as(u2), u2], -1)
    z2 = t21.unsqueeze(-1) * u[..., 0] + t22.unsqueeze(-1) * u2 + e2.unsqueeze(-1)
    z = torch.stack([z1.unsqueeze(-1).expand_as(u2), z2], -1)
    outer = half * (torch.pi / 2 * y).cos() * v * (torch.pi / 2)
    weight = (outer * length).unsqueeze(-1) * w * (1 - u.square().sum(-1)).clamp_min(0) ** p
    return u, z, weight
