"""Expectations of Gaussians under (1 - |u|^2)^n on an ellipse: closed form along a chord, Gauss-Legendre across.

Legend: B batch, N basis functions, Q chords, d dimensions (1 or 2); p and q are powers n.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from regard import _check, native
from regard._torch import exporting
from regard.continuous import _small, chord
from regard.continuous.bessel import ball_constant

# Number of chords, and the standard deviations of the Gaussian they cover: errors near 1e-5 and 1e-8 of the maximum.
RULES = {torch.float32: (20, 5.0), torch.float64: (32, 6.0)}
# Elements of one temporary array, so that the blocks of a large batch fit the processor's cache.
_BLOCK = 1 << 18

Moments = tuple[Tensor, Tensor, Tensor]


def ellipse_gaussian(offset: Tensor, ellipse: Tensor, gaussian: Tensor, p: int, q: int, chords: int | None) -> Moments:
    """E_p[N(t; m, S)], E_p[grad N] and E_q[hess N] on one ellipse: equation (5.13).

    The densities are proportional to (1 - |u|^2)^p and (1 - |u|^2)^q on the same ellipse.

    `offset`: centre of the ellipse less m, (..., N, d).
    `ellipse`: covariance of the first density, (..., N or 1, d, d).
    `gaussian`: S, (..., N or 1, d, d).
    `p`, `q`: the two powers.
    `chords`: Gauss-Legendre nodes in two dimensions; default by `RULES`.

    Returns (..., N), (..., N, d), (..., N, d, d). No gradient: made for `with_jacobian`.
    """
    d = offset.shape[-1]
    if p > 1 and offset.dtype == torch.float32:
        # The recurrence to higher powers multiplies rounding errors by the sixth power of a distance.
        wide = ellipse_gaussian(offset.double(), ellipse.double(), gaussian.double(), p, q, chords)
        return wide[0].float(), wide[1].float(), wide[2].float()
    whiten = _small.lower_inverse(_small.cholesky(gaussian))
    # The ellipse is mu + A u with A A^T = (d + 2 p + 2) Var; in coordinates where the Gaussian is standard:
    shape = (d + 2 * p + 2) * (whiten @ ellipse @ whiten.mT)
    if d == 1:
        frame = whiten
        y = _small.transform(offset, frame.mT)
        value, slope, curvature = _on_interval(y[..., 0], shape[..., 0, 0].sqrt(), p, q)
    else:
        long, short, angle = _small.axes_and_angle(shape)
        cos, sin = angle.cos(), angle.sin()
        frame = _small.matrices(torch.stack([cos, sin, -sin, cos], -1)) @ whiten
        y = _small.transform(offset, frame.mT)
        value, slope, curvature = _on_ellipse(y[..., 0], y[..., 1], long, short, p, q, chords)
    peak = whiten.diagonal(dim1=-2, dim2=-1).prod(-1)
    by_offset = _small.transform(slope * -peak.unsqueeze(-1), frame)
    return value * peak, by_offset, _small.congruence(curvature * peak[..., None, None], frame)


def _on_interval(y: Tensor, half: Tensor, p: int, q: int) -> Moments:
    value, slope, _, _, curvature = _either(y, half, half < chord.SHORT, p, q)
    c, c_star = ball_constant(1, p), ball_constant(1, q)
    return c * value, c * slope.unsqueeze(-1), c_star * curvature[..., None, None]


def _on_ellipse(y1: Tensor, y2: Tensor, long: Tensor, short: Tensor, p: int, q: int, chords: int | None) -> Moments:
    """`_block` over the flattened batch. y1 along the long axis, y2 along the short one, in standard deviations."""
    batch, n = y1.shape[:-1], y1.shape[-1]
    default, reach = RULES[y1.dtype]
    nodes = default if chords is None else _check.count("chords", chords)
    flat = [x.expand(*batch, x.shape[-1]).reshape(-1, x.shape[-1], 1) for x in (y1, y2, long, short)]
    sums = _by_kernel(flat, q, nodes, reach) if p == 1 else None
    if sums is None:
        rows = max(1, _BLOCK // (n * nodes))
        # An exported graph for all sizes cannot depend on the number of rows.
        pieces = [flat] if exporting() else zip(*(torch.split(x, rows) for x in flat), strict=True)
        blocks = [_block(a, b, c, d, p, q, nodes, reach) for a, b, c, d in pieces]
        sums = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
    sums = sums.reshape(*batch, n, 6)
    return sums[..., 0], sums[..., 1:3], _small.matrices(sums[..., [3, 4, 4, 5]])


def _by_kernel(flat: list[Tensor], q: int, nodes: int, reach: float) -> Tensor | None:
    """The sums of `_block` with p = 1 by the native kernel, in one pass; None where it does not apply."""
    y1, short = flat[0], flat[3]
    if y1.dtype != torch.float32 or not _check.readable(y1) or not native.usable(*flat):
        return None
    if bool((short < chord.SHORT).any()):
        return None
    x, w = gauss_legendre(nodes, y1)
    sums = y1.new_empty(*y1.shape[:2], 6)
    ellipses = [y.expand_as(y1).contiguous() for y in flat]
    c = ball_constant(2, 1)
    native.call("regard_chords_f32", *ellipses, sums, y1.numel(), x, w * c, nodes, q, reach, ball_constant(2, q) / c)
    return sums


def _block(y1: Tensor, y2: Tensor, long: Tensor, short: Tensor, p: int, q: int, nodes: int, reach: float) -> Tensor:
    """All chords of a block of rows. Returns the value, the two slopes and the three second derivatives, (B, N, 6).

    `y1`, `y2`: centre of the ellipse along its long and short axis, (B, N, 1).
    `long`, `short`: its half axes, (B, N or 1, 1).
    `p`, `q`: powers of the two densities.
    `nodes`: number of chords.
    `reach`: standard deviations of the Gaussian that the chords cover.
    """
    x, w = gauss_legendre(nodes, y1)
    # Chords lie along the short axis, at u1 = sin(angle): the square root at both ends disappears. They cover only what
    # is within reach of the Gaussian. Along the *long* axis a thin ellipse would need several times as many.
    first = ((-reach - y1) / long).clamp(-1, 1).asin_()
    last = ((reach - y1) / long).clamp(-1, 1).asin_()
    half = (last - first) * 0.5
    angle = (last + first) * 0.5 + half * x
    # Out of reach all chords fall on a tip, where the length is zero and so is the weight.
    cos = angle.cos().clamp_min_(1e-4)
    sine = angle.sin_()
    along = y1 + long * sine
    D_p, Y_p, D_q, Y_q, Z_q = _either(y2, short * cos, short < chord.SHORT, p, q)
    c, c_star = ball_constant(2, p), ball_constant(2, q)
    squared = cos.square()
    kernel = chord.normal(along)
    for _ in range(p + 1):
        kernel = kernel.mul_(squared)
    value, slope = kernel * D_p, kernel * Y_p
    kernel_q, value_q, slope_q = kernel, value, slope
    if q > p:
        kernel_q = kernel * squared.mul_(c_star / c)
        value_q, slope_q = kernel_q * D_q, kernel_q * Y_q
    value_y = value * along
    # On a large ellipse the second derivative in y1 is a difference of large terms. Integrating by parts once,
    # int (1-|u|^2)^q phi''(y1) = -2 q / long int u1 y1 (1-|u|^2)^(q-1) phi(y1), avoids most of the cancellation.
    direct = ((along.square() - 1) * value_q) @ w
    if q == p + 1:
        by_parts = ((value_y * sine) @ w) * (-2 * q * c_star / c / long.squeeze(-1))
        direct = torch.where(long.squeeze(-1) > 2, by_parts, direct)
    # Sums over the chords are products with their weights.
    sums = [value @ w, value_y @ w, slope @ w, direct, (slope_q * along) @ w, (kernel_q * Z_q) @ w]
    return torch.stack(sums, -1).mul_(half * c)


def _either(delta: Tensor, h: Tensor, short: Tensor, p: int, q: int) -> chord.ChordIntegrals:
    """The closed form, or the series where `short` is True: where the ellipse is too small for the closed form."""
    if _check.readable(short) and not bool(short.any()):
        return chord.closed_form(delta, h, p, q)
    small = chord.series(delta, h.clamp_max(chord.SHORT), p, q)
    large = chord.closed_form(delta, torch.where(short, chord.SHORT, h), p, q)
    d_p, y_p, d_q, y_q, z_q = (torch.where(short, a, b) for a, b in zip(small, large, strict=True))
    return d_p, y_p, d_q, y_q, z_q


def gauss_legendre(nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (Q,) of the rule on [-1, 1] that is exact for polynomials up to degree 2 Q - 1."""
    x, w = _legendre(nodes)
    return like.new_tensor(x), like.new_tensor(w)


@cache
def _legendre(nodes: int) -> tuple[list[float], list[float]]:
    """Newton's method on the Legendre polynomial, from the usual cosine guesses."""
    points, weights = [], []
    for i in range(nodes):
        x, slope = math.cos(math.pi * (i + 0.75) / (nodes + 0.5)), 1.0
        for _ in range(8):
            previous, value = 1.0, x
            for k in range(2, nodes + 1):
                previous, value = value, ((2 * k - 1) * x * value - (k - 1) * previous) / k
            slope = nodes * (x * value - previous) / (x * x - 1)
            x -= value / slope
        points.append(x)
        weights.append(2 / ((1 - x * x) * slope * slope))
    return points, weights
