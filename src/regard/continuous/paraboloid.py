"""Expectations of truncated paraboloids under Gaussians, and their derivatives without cancellation.

Legend: N basis functions, Q chords, d dimensions (1 or 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.continuous import chord
from regard.continuous._gamma import ball_constant
from regard.continuous.nodes import angles_in_reach, gauss_legendre
from regard.continuous.quadrature import Moments, chord_integrals, row_blocks, rule_for, whitened


def paraboloid_gaussian(offset: Tensor, paraboloid: Tensor, gaussian: Tensor, chords: int | None) -> Moments:
    """The integral of a normalised truncated paraboloid times a Gaussian, its gradient and Hessian: equation (5.31).

    Derivatives are those in `offset`. For a Gaussian much narrower than the paraboloid the integral of its second
    derivative is a difference of terms that are larger by the squared ratio of the two. Integrating by parts twice
    leaves the mass inside the ellipse and an integral along its boundary. All in float64.

    `offset`: centre of the paraboloid less that of the Gaussian, (..., N, d).
    `paraboloid`: its covariance, (N or 1, d, d).
    `gaussian`: covariance of the Gaussian, (..., 1, d, d).
    `chords`: Gauss-Legendre nodes in two dimensions; default 32.

    Returns (..., N), (..., N, d), (..., N, d, d). No gradient: made for `with_jacobian`.
    """
    d = offset.shape[-1]
    where = whitened(offset, paraboloid, gaussian, d + 4)
    nodes, reach = rule_for(where.centre, chords)
    if d == 1:
        centre, half = where.centre[..., 0], where.axes[0]
        _, _, value, slope, curvature = chord_integrals(centre, half, half < chord.SHORT, 0, 1, nodes, reach)
        c = ball_constant(1, 1)
        return where.back(c * value, c * slope.unsqueeze(-1), c * curvature[..., None, None])
    sums = row_blocks(lambda y1, y2, long, short: _all_chords(y1, y2, long, short, nodes, reach), where.flat(), nodes)
    return where.back(*where.unflat(sums))


def _all_chords(y1: Tensor, y2: Tensor, long: Tensor, short: Tensor, nodes: int, reach: float) -> Tensor:
    """All chords of a block of rows: the value, the two slopes and the three second derivatives, (B, N, 6).

    `y1`, `y2`: centre of the ellipse along its long and short axis, (B, N, 1).
    `long`, `short`: its half axes, (B, N or 1, 1).
    `nodes`: number of chords.
    `reach`: standard deviations of the Gaussian that the chords cover.
    """
    # Chords must cross the boundary, not run beside it. Near the tip of a large ellipse they lie along the long axis.
    turned = (short.square() > long) & (y1.abs() * short.square() > y2.abs() * long.square())
    across, along = torch.where(turned, y2, y1), torch.where(turned, y1, y2)
    a, b = torch.where(turned, short, long), torch.where(turned, long, short)
    x, w = gauss_legendre(nodes, y1)
    first, last = angles_in_reach(across, a, reach)
    half = (last - first) * 0.5
    angle = (last + first) * 0.5 + half * x
    cos, sine = angle.cos().clamp_min_(1e-8), angle.sin()
    position, h = across + a * sine, b * cos
    D_0, Y_0, D_1, Y_1, Z_1 = chord_integrals(along, h, b < chord.SHORT, 0, 1, nodes, reach)
    line = chord.normal(position)
    disc = line * cos.square()
    kernel = disc * cos.square()
    ends = line * sine.square() * (chord.normal(along + h) + chord.normal(along - h))
    # Derivatives across the chords: by parts where the ellipse is large, directly where it is small.
    large, a = (a > chord.long_enough(1)).squeeze(-1), a.squeeze(-1)
    slope = torch.where(large, (disc * D_0 * sine) @ w * (-2 / a), (kernel * D_1 * position) @ w)
    mixed = torch.where(large, (disc * Y_0 * sine) @ w * (-2 / a), (kernel * Y_1 * position) @ w)
    by_parts = ((ends - disc * D_0) @ w) * (2 / a.square())
    curve = torch.where(large, by_parts, (kernel * D_1 * (position.square() - 1)) @ w)
    slope_along, curve_along = (kernel * Y_1) @ w, (kernel * Z_1) @ w
    turned = turned.squeeze(-1)
    slopes = [torch.where(turned, slope_along, slope), torch.where(turned, slope, slope_along)]
    curves = [torch.where(turned, curve_along, curve), mixed, torch.where(turned, curve, curve_along)]
    return torch.stack([(kernel * D_1) @ w, *slopes, *curves], -1) * (half * ball_constant(2, 1))
