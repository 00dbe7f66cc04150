"""Expectations of Gaussians under (1 - |u|^2)^n on an ellipse: closed form along a chord, Gauss-Legendre across.

Legend: B batch, N basis functions, Q chords, d dimensions (1 or 2); p and q are powers n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard import _check, gpu, native
from regard._torch import exporting, transforming
from regard.continuous import _small, chord
from regard.continuous._gamma import ball_constant
from regard.continuous.nodes import angles_in_reach, edge_of, gauss_legendre, log_of_squared_cosine
from regard.continuous.triton import chords_triton, series_of

# Number of chords, and the standard deviations of the Gaussian they cover: errors near 1e-5 and 1e-8 of the maximum.
RULES = {torch.float32: (20, 5.0), torch.float64: (32, 6.0)}
# Elements of one temporary array, so that the blocks of a large batch fit a CPU's cache; 64 times as many elsewhere.
_BLOCK = 1 << 18

Moments = tuple[Tensor, Tensor, Tensor]


class Whitened(NamedTuple):
    """An ellipse in coordinates where a Gaussian is standard and the ellipse's axes are those of the coordinates.

    `centre` (..., N, d); `axes`: d half axes (..., N or 1), the long one first; `frame` (..., N or 1, d, d) turns an
    offset into these coordinates; `peak` (..., N or 1) is the Gaussian's density factor |S|^(-1/2).
    """

    centre: Tensor
    axes: tuple[Tensor, ...]
    frame: Tensor
    peak: Tensor

    def back(self, value: Tensor, slope: Tensor, curvature: Tensor) -> Moments:
        """Integrals of phi, y phi and phi'' in these coordinates as those of N, grad N and hess N in the original."""
        by_offset = _small.transform(slope * -self.peak.unsqueeze(-1), self.frame)
        return value * self.peak, by_offset, _small.congruence(curvature * self.peak[..., None, None], self.frame)

    def flat(self) -> list[Tensor]:
        """Centre along the long and the short axis (B, N, 1) and the two half axes (B, N or 1, 1), in the plane."""
        batch = self.centre.shape[:-2]
        parts = (*self.centre.unbind(-1), *self.axes)
        return [x.expand(*batch, x.shape[-1]).reshape(-1, x.shape[-1], 1) for x in parts]

    def unflat(self, sums: Tensor) -> Moments:
        """Value, slopes and second derivatives in these coordinates from (B, N, 6), in the shape of the batch."""
        sums = sums.reshape(*self.centre.shape[:-1], 6)
        value, _, _, first, mixed, second = sums.unbind(-1)
        # An index by a list would be copied to a device, which waits.
        return value, sums[..., 1:3], _small.matrices(torch.stack((first, mixed, mixed, second), -1))


def whitened(offset: Tensor, ellipse: Tensor, gaussian: Tensor, scale: float) -> Whitened:
    """The ellipse with A A^T = scale * `ellipse` and the Gaussian with covariance `gaussian`, in one or two dimensions.

    `offset`: centre of the ellipse less that of the Gaussian, (..., N, d).
    """
    whiten = _small.lower_inverse(_small.cholesky(gaussian))
    shape = scale * (whiten @ ellipse @ whiten.mT)
    peak = whiten.diagonal(dim1=-2, dim2=-1).prod(-1)
    if offset.shape[-1] == 1:
        return Whitened(_small.transform(offset, whiten.mT), (shape[..., 0, 0].sqrt(),), whiten, peak)
    long, short, angle = _small.axes_and_angle(shape)
    cos, sin = angle.cos(), angle.sin()
    frame = _small.matrices(torch.stack([cos, sin, -sin, cos], -1)) @ whiten
    return Whitened(_small.transform(offset, frame.mT), (long, short), frame, peak)


def ellipse_gaussian(
    offset: Tensor, ellipse: Tensor, gaussian: Tensor, p: float, q: float, chords: int | None
) -> Moments:
    """E_p[N(t; m, S)], E_p[grad N] and E_q[hess N] on one ellipse: equation (5.13).

    The densities are proportional to (1 - |u|^2)^p and (1 - |u|^2)^q on the same ellipse.

    `offset`: centre of the ellipse less m, (..., N, d).
    `ellipse`: covariance of the first density, (..., N or 1, d, d).
    `gaussian`: S, (..., N or 1, d, d).
    `p`, `q`: the two powers, p > -1 and q = p + 1; for p = 1 also q = 1.
    `chords`: Gauss-Legendre nodes; default by `RULES`.

    Returns (..., N), (..., N, d), (..., N, d, d). No gradient: made for `with_jacobian`.
    """
    d = offset.shape[-1]
    if p != 1 and offset.dtype == torch.float32:
        # The recurrence to higher powers multiplies rounding errors by the sixth power of a distance.
        wide = ellipse_gaussian(offset.double(), ellipse.double(), gaussian.double(), p, q, chords)
        return wide[0].float(), wide[1].float(), wide[2].float()
    # The ellipse is mu + A u with A A^T = (d + 2 p + 2) Var.
    where = whitened(offset, ellipse, gaussian, d + 2 * p + 2)
    if d == 1:
        return where.back(*_on_interval(where.centre[..., 0], where.axes[0], p, q, chords))
    return where.back(*_on_ellipse(where, p, q, chords))


def rule_for(x: Tensor, chords: int | None, p: float = 1) -> tuple[int, float]:
    """The number of chords, by default that of the dtype, and the standard deviations that they cover.

    One more where the power p has no closed form: the ends of nodes along a chord are cut off too.
    """
    default, reach = RULES[x.dtype]
    reach = reach if chord.has_closed_form(p) else reach + 1
    return default if chords is None else _check.count("chords", chords), reach


def _on_interval(y: Tensor, half: Tensor, p: float, q: float, chords: int | None) -> Moments:
    nodes, reach = rule_for(y, chords, p)
    value, slope, _, _, curvature = chord_integrals(y, half, half < chord.SHORT, p, q, nodes, reach)
    c, c_star = ball_constant(1, p), ball_constant(1, q)
    return c * value, c * slope.unsqueeze(-1), c_star * curvature[..., None, None]


def _on_ellipse(where: Whitened, p: float, q: float, chords: int | None) -> Moments:
    """`_block`, or a kernel, over the flattened batch."""
    nodes, reach = rule_for(where.centre, chords, p)
    flat = where.flat()
    sums = _by_kernel(flat, int(q), nodes, reach) if p == 1 else None
    if sums is None:
        per_function = nodes if chord.has_closed_form(p) else nodes * nodes
        sums = row_blocks(lambda a, b, c, d: _block(a, b, c, d, p, q, nodes, reach), flat, per_function)
    return where.unflat(sums)


def row_blocks(block: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], flat: list[Tensor], nodes: int) -> Tensor:
    """`block` of a few rows of the four tensors of `Whitened.flat` at a time; `nodes` is the number per function."""
    size = _BLOCK if flat[0].device.type == "cpu" else 64 * _BLOCK
    rows = max(1, size // (flat[0].shape[1] * nodes))
    # An exported graph for all sizes cannot depend on the number of rows.
    pieces = [flat] if exporting() else zip(*(torch.split(x, rows) for x in flat), strict=True)
    blocks = [block(a, b, c, d) for a, b, c, d in pieces]
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _by_kernel(flat: list[Tensor], q: int, nodes: int, reach: float) -> Tensor | None:
    """The sums of `_block` with p = 1 by a kernel, in one pass; None where none applies."""
    y1, short = flat[0], flat[3]
    if y1.dtype != torch.float32 or exporting():
        return None
    by_triton = gpu.usable(*flat) and not transforming()
    if not by_triton and (not _check.readable(y1) or not native.usable(*flat) or bool((short < chord.SHORT).any())):
        return None
    x, w = gauss_legendre(nodes, y1)
    ellipses = [y.expand_as(y1).contiguous() for y in flat]
    c = ball_constant(2, 1)
    if by_triton:
        ratio, factors = ball_constant(2, q) / c, series_of(q, y1)
        found: Tensor = chords_triton(*ellipses, x, w * c, factors, q, reach, ratio)
        return found[..., 0, :]
    sums = y1.new_empty(*y1.shape[:2], 6)
    native.call("regard_chords_f32", *ellipses, sums, y1.numel(), x, w * c, nodes, q, reach, ball_constant(2, q) / c)
    return sums


def _block(y1: Tensor, y2: Tensor, long: Tensor, short: Tensor, p: float, q: float, nodes: int, reach: float) -> Tensor:
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
    first, last = angles_in_reach(y1, long, reach, edge_of(p + 0.5, reach))
    half = (last - first) * 0.5
    angle = (last + first) * 0.5 + half * x
    # Out of reach all chords fall on a tip, where the length is zero and so is the weight.
    cos = angle.cos().clamp_min_(1e-4)
    sine = angle.sin_()
    along = y1 + long * sine
    D_p, Y_p, D_q, Y_q, Z_q = chord_integrals(y2, short * cos, short < chord.SHORT, p, q, nodes, reach)
    c, c_star = ball_constant(2, p), ball_constant(2, q)
    squared = cos.square()
    kernel = chord.normal(along)
    if chord.has_closed_form(p):
        for _ in range(int(p) + 1):
            kernel = kernel.mul_(squared)
    else:
        kernel = kernel * torch.exp((p + 1) * log_of_squared_cosine(sine))
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
        direct = torch.where(long.squeeze(-1) > chord.long_enough(p), by_parts, direct)
    # Sums over the chords are products with their weights.
    sums = [value @ w, value_y @ w, slope @ w, direct, (slope_q * along) @ w, (kernel_q * Z_q) @ w]
    return torch.stack(sums, -1).mul_(half * c)


def chord_integrals(
    delta: Tensor, h: Tensor, short: Tensor, p: float, q: float, nodes: int, reach: float
) -> chord.ChordIntegrals:
    """The integrals (5.14) of chords: in closed form, by the series where `short` is True; other powers by nodes.

    `delta`, `h`: middle and half length of the chords.
    `short`: where the ellipse is too small for the closed form.
    `p`, `q`: the two powers.
    `nodes`, `reach`: of the nodes along a chord, where there are any.
    """
    if not chord.has_closed_form(p):
        return chord.by_nodes(delta, h, p, nodes, reach)
    first, second = int(p), int(q)
    if _check.readable_at_once(short) and not bool(short.any()):
        return chord.closed_form(delta, h, first, second)
    small = chord.series(delta, h.clamp_max(chord.SHORT), first, second)
    large = chord.closed_form(delta, torch.where(short, chord.SHORT, h), first, second)
    d_p, y_p, d_q, y_q, z_q = (torch.where(short, a, b) for a, b in zip(small, large, strict=True))
    return d_p, y_p, d_q, y_q, z_q
