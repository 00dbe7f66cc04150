"""Continuous attention over a picture: contours, the edge of the support, the components of a mixture."""

from __future__ import annotations

import math

import numpy
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Ellipse as Outline
from torch import Tensor

from regard import _check
from regard.continuous import Density, Mixture, PearsonTypeII
from regard.continuous.members import members
from regard.show._canvas import (
    COLOUR_MAP,
    HALO,
    THICK_HALO,
    AnyFigure,
    Array,
    Image,
    backdrop,
    beside_bar,
    colour_bar,
    lattice,
    scale,
)

LEVELS = 7


def density(
    image: Image, density: Density, ax: Axes | None = None, *, vmax: float | None = None, bar: bool = True
) -> AnyFigure:
    """Contours of one density on the plane, or of a batch of one, over the picture; one colour map for all families.

    The edge of a bounded support (continuous sparsemax) is drawn thick. Each component of a mixture has its outline,
    that edge or the dashed ellipse of one standard deviation, and its share in the middle. The density is per area of
    the picture: 1 is uniform attention.

    `image`: as in `grid`.
    `density`: on the plane.
    `ax`: axes to draw into; default those of a new figure.
    `vmax`: the density at the bright end of the scale; default the largest.
    `bar`: draw a colour bar; default True.

    >>> import torch
    >>> from regard.continuous import Paraboloid
    >>> figure = density(None, Paraboloid(torch.full((2,), 0.5), 0.01 * torch.eye(2)))
    >>> [edge.get_linewidth() for edge in figure.axes[0].patches]
    [2.5]
    """
    figure, ax = beside_bar(ax, image)
    values = sampled(density)
    norm = scale(float(values.max()) if vmax is None else vmax)
    backdrop(ax, image)
    draw_density(ax, density, values, norm)
    if bar:
        colour_bar(figure, norm, "density (1 = even attention)", ax=ax)
    return figure


def sampled(density: Density) -> Array:
    """The density on a fine lattice of the unit square."""
    if density.event_shape != (2,) or density.batch_shape.numel() != 1:
        got = f"batch {tuple(density.batch_shape)} in {density.event_shape[0]} dimensions"
        _check.complain("density", got, "one density on the plane", "For sequences there is weights_1d.")
    x, _, points = lattice()
    return density.pdf(points.to(density.mean)).detach().cpu().double().reshape(x.shape).numpy()


def draw_density(ax: Axes, density: Density, values: Array, norm: Normalize) -> None:
    """Draw contours into axes that have a backdrop.

    `values`: the density on the lattice.
    `norm`: the scale of the colours.
    """
    x, y, _ = lattice()
    top = norm.vmax or 1.0
    # Equally spaced in colour.
    levels = numpy.asarray(norm.inverse(numpy.linspace(0, 1, LEVELS + 1)))
    levels[0] = 1e-3 * top
    ax.contourf(x, y, values, levels=levels, cmap=COLOUR_MAP, norm=norm, alpha=0.5, extend="max")
    ax.contour(x, y, values, levels=levels[1:], cmap=COLOUR_MAP, norm=norm, linewidths=1.4)
    _outline(ax, members(density)[0])
    ax.set(xlim=(0, 1), ylim=(1, 0))


def _outline(ax: Axes, density: Density) -> None:
    """The edge of each bounded component, thick; one standard deviation of each Gaussian in a mixture, dashed."""
    if isinstance(density, Mixture):
        for k in range(density.mixing.shape[-1]):
            share = float(density.mixing[k])
            if share > 0:
                mean, covariance = density.parts.mean[k], density.parts.covariance[k]
                _ellipse(ax, mean, covariance, radius(density.parts))
                x, y = mean.tolist()
                text = ax.text(x, y, f"{share:.2f}", color="white", ha="center", va="center", fontsize=9)
                text.set_path_effects(HALO)
                text.set_clip_on(True)
    elif (edge := radius(density)) is not None:
        _ellipse(ax, density.mean, density.covariance, edge)


def radius(density: Density) -> float | None:
    """The half axes of the support in standard deviations, or None where it is unbounded."""
    return math.sqrt(4 + 2 * density.power) if isinstance(density, PearsonTypeII) else None


def _ellipse(ax: Axes, mean: Tensor, covariance: Tensor, edge: float | None) -> None:
    size, direction = torch.linalg.eigh(covariance.detach().double().cpu())
    short, long = (2 * (edge or 1.0) * size.sqrt()).tolist()
    angle = math.degrees(math.atan2(float(direction[1, 1]), float(direction[0, 1])))
    style = {"linewidth": 2.5} if edge else {"linewidth": 1.2, "linestyle": (0, (4, 3))}
    outline = Outline(
        (float(mean[0]), float(mean[1])), long, short, angle=angle, fill=False, edgecolor="white", **style
    )
    outline.set_path_effects(HALO if edge is None else THICK_HALO)
    ax.add_patch(outline)
