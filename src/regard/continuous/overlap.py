"""Expectations of truncated paraboloids under (1 - |u|^2)^p on an ellipse: integrals over an overlap of two ellipses.

Legend: B batch, N basis functions, Q outer nodes, R inner nodes, d dimensions (1 or 2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard import _check
from regard._torch import exporting
from regard.continuous import _small, chord
from regard.continuous._gamma import ball_constant
from regard.continuous.nodes import edge_of, gauss_legendre, log_of_squared_cosine
from regard.continuous.quadrature import Moments

# Nodes across, nodes along for powers that are not whole, and the standard deviations of a density with a large power.
_ACROSS, _ALONG, _REACH = 100, 24, 6.0
# Points at which signs are compared to find where the ellipses cross, the most crossings there are, and halvings.
_SAMPLES, _CROSSINGS, _HALVINGS = 65, 4, 45
# Nodes of one temporary array.
_NODES_AT_ONCE = 1 << 19


def ellipse_ellipse(offset: Tensor, ellipse: Tensor, basis: Tensor, p: float, chords: int | None) -> Moments:
    """r = E_p[psi], dr/dmean and dr/dcovariance for psi a normalised truncated paraboloid: equation (5.17).

    `offset`: mean of the density less the centre of psi, (..., N, d).
    `ellipse`: covariance of the density, (..., 1, d, d).
    `basis`: covariance of psi, (N or 1, d, d).
    `p`: power of the density.
    `chords`: nodes across, in all five intervals between the places where the edges of the two ellipses cross; default
    100.

    All in float64: float32 would lose the digits of a thin density. Returns (..., N), (..., N, d), (..., N, d, d).
    Along a chord the integrand is a polynomial and a few Gauss-Legendre nodes are exact, or, for a power that is not
    whole, a polynomial times a power of the cosine of an angle. Across, it has kinks where the edges cross; between
    them it is smooth.
    """
    n, d = offset.shape[-2:]
    batch = offset.shape[:-2]
    nodes = _ACROSS if chords is None else _check.count("chords", chords)
    flat = offset.reshape(-1, n, d), ellipse.expand(*batch, 1, d, d).reshape(-1, 1, d, d)
    rows = max(1, _NODES_AT_ONCE // (n * (nodes if d == 2 else 1) * (4 if chord.has_closed_form(p) else _ALONG)))
    # An exported graph for all sizes cannot depend on the number of rows.
    pieces = [flat] if exporting() else list(zip(*(torch.split(x, rows) for x in flat), strict=True))
    moments = [_rows(centre, spread, basis, p, nodes) for centre, spread in pieces]
    value, slope, curve = (torch.cat(parts) for parts in zip(*moments, strict=True))
    return value.reshape(*batch, n), slope.reshape(*batch, n, d), curve.reshape(*batch, n, d, d)


def _rows(offset: Tensor, ellipse: Tensor, basis: Tensor, p: float, nodes: int) -> Moments:
    """`ellipse_ellipse` for some rows, (B, N), (B, N, d), (B, N, d, d)."""
    d = offset.shape[-1]
    k = d + 2 * p + 2
    out = _small.cholesky(k * ellipse)
    into = _small.lower_inverse(_small.cholesky((d + 4) * basis))
    # t = mu + A u is inside psi when |T u + e| <= 1. A and B are lower triangular, so T is, and u1 alone decides z1.
    to_z, e = into @ out, _small.transform(offset, into.mT)
    peak = ball_constant(d, 1) * into.diagonal(dim1=-2, dim2=-1).prod(-1)
    u, z, weight = _on_line(to_z, e, p) if d == 1 else _in_the_plane(to_z, e, p, nodes)
    weight = weight * ball_constant(d, p)
    value = (weight * (1 - z.square().sum(-1))).sum((-1, -2))
    weighted = (weight.unsqueeze(-1) * z).flatten(-3, -2)
    mean_z = weighted.sum(-2)
    cross = u.flatten(-3, -2).mT @ weighted
    by_mean = _small.transform(mean_z * (-2 * peak.unsqueeze(-1)), into)
    # dA = dVar Var^-1 A / 2 turns E_p[grad psi (dA u)^T] into a gradient in Var: A^-T E_p[u grad psi^T], symmetrised.
    by_covariance = _small.lower_inverse(out).mT @ cross @ into * (-k * peak[..., None, None])
    return value * peak, by_mean, (by_covariance + by_covariance.mT) / 2


def _on_line(to_z: Tensor, e: Tensor, p: float) -> Moments:
    """Points u, z (..., N, 1, R, 1) of the overlap of two intervals and their weights (..., N, 1, R)."""
    edge = edge_of(p + 0.5, _REACH)
    t = to_z[..., 0]
    u, weight = _along(((-1 - e) / t).clamp(-edge, edge), ((1 - e) / t).clamp(-edge, edge), p)
    return u.unsqueeze(-1), (t.unsqueeze(-1) * u + e.unsqueeze(-1)).unsqueeze(-1), weight


class _Overlap(NamedTuple):
    """The unit disc and |T u + e| <= 1: the entries of T and e, and the u1 between which both are, all (..., N, 1)."""

    t11: Tensor
    t21: Tensor
    t22: Tensor
    e1: Tensor
    e2: Tensor
    low: Tensor
    high: Tensor

    def at(self, angle: Tensor) -> Tensor:
        """u1 = middle + half sin(angle): from `low` to `high`, with more room at both ends."""
        return (self.high + self.low) / 2 + (self.high - self.low) / 2 * angle.sin()

    def chord(self, u1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The half length of the disc's chord at u1, and the u2 where psi's begins and ends."""
        z1 = self.t11 * u1 + self.e1
        half_u, half_z = (1 - u1 * u1).clamp_min(1e-300).sqrt(), (1 - z1 * z1).clamp_min(0).sqrt()
        middle = -(self.t21 * u1 + self.e2)
        return half_u, (middle - half_z) / self.t22, (middle + half_z) / self.t22

    def crossings(self) -> Tensor:
        """The angles where the edges cross, in order, (..., N, 4); pi / 2 in place of those that there are not."""
        angles = torch.linspace(-math.pi / 2, math.pi / 2, _SAMPLES, dtype=self.e1.dtype, device=self.e1.device)
        half, bottom, top = self.chord(self.at(angles))
        above = torch.stack([top > half, top > -half, bottom > half, bottom > -half], -2)
        changes = (above[..., 1:] != above[..., :-1]).flatten(-2)
        found, place = changes.to(torch.uint8).topk(_CROSSINGS, -1)
        which, cell = place // (_SAMPLES - 1), place % (_SAMPLES - 1)
        of_top, sign = which < 2, torch.where(which % 2 == 0, 1.0, -1.0).to(self.e1.dtype)
        low, high = angles[cell], angles[cell + 1]
        below_first = ~torch.take_along_dim(above[..., :-1].flatten(-2), place, -1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            half, bottom, top = self.chord(self.at(middle))
            before = (torch.where(of_top, top, bottom) > sign * half) != below_first
            low, high = torch.where(before, middle, low), torch.where(before, high, middle)
        return torch.where(found.bool(), (low + high) / 2, math.pi / 2).sort(-1).values


def _in_the_plane(to_z: Tensor, e: Tensor, p: float, nodes: int) -> Moments:
    """Points u, z (..., N, Q, R, 2) of the overlap and their weights (..., N, Q, R), which include the density."""
    edge = edge_of(p + 0.5, _REACH)
    t11, t21, t22 = (to_z[..., i, j].unsqueeze(-1) for i, j in ((0, 0), (1, 0), (1, 1)))
    e1, e2 = e[..., :1], e[..., 1:]
    low, high = ((-1 - e1) / t11).clamp(-edge, edge), ((1 - e1) / t11).clamp(-edge, edge)
    both = _Overlap(t11, t21, t22, e1, e2, low, high)
    breaks = both.crossings()
    ends = torch.cat([low, both.at(breaks), high], -1).unsqueeze(-1)
    x, w = gauss_legendre(max(1, math.ceil(nodes / (_CROSSINGS + 1))), e)
    # In every interval the substitution by a sine removes the square roots at both ends.
    middle, half = (ends[..., 1:, :] + ends[..., :-1, :]) / 2, (ends[..., 1:, :] - ends[..., :-1, :]) / 2
    u1 = (middle + half * (torch.pi / 2 * x).sin()).flatten(-2)
    outer = (half * (torch.pi / 2 * x).cos() * w * (torch.pi / 2)).flatten(-2)
    half_u, bottom, top = both.chord(u1)
    inner, weight = _along((bottom / half_u).clamp(-1, 1), (top / half_u).clamp(-1, 1), p)
    u = torch.stack(torch.broadcast_tensors(u1.unsqueeze(-1), half_u.unsqueeze(-1) * inner), -1)
    z1 = t11.unsqueeze(-1) * u[..., 0] + e1.unsqueeze(-1)
    z2 = t21.unsqueeze(-1) * u[..., 0] + t22.unsqueeze(-1) * u[..., 1] + e2.unsqueeze(-1)
    weight = (outer * torch.exp((p + 0.5) * log_of_squared_cosine(u1))).unsqueeze(-1) * weight
    return u, torch.stack([z1, z2], -1), weight


def _along(low: Tensor, high: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Nodes x (..., R) of [low, high], part of [-1, 1], and weights for integrals of polynomials times (1 - x^2)^p."""
    if chord.has_closed_form(p):
        x, w = gauss_legendre(int(p) + 3, low)
        middle, half = ((high + low) / 2).unsqueeze(-1), ((high - low) / 2).unsqueeze(-1)
        points = middle + half * x
        return points, half * w * (1 - points * points) ** int(p)
    x, w = gauss_legendre(_ALONG, low)
    edge = edge_of(p + 0.5, _REACH)
    first, last = (end.clamp(-edge, edge).asin().unsqueeze(-1) for end in (low, high))
    half = (last - first) / 2
    points = ((last + first) / 2 + half * x).sin()
    return points, half * w * torch.exp((p + 0.5) * log_of_squared_cosine(points))
