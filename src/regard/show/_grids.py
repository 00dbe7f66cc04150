"""Discrete attention over a picture."""

from __future__ import annotations

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from torch import Tensor

from regard.show._canvas import COLOUR_MAP, AnyFigure, Array, Image, backdrop, beside_bar, colour_bar, on_grid, scale

RIPPLE = 0.01


def grid(
    image: Image, weights: Tensor, ax: Axes | None = None, *, vmax: float | None = None, bar: bool = True
) -> AnyFigure:
    """The weights (h, w) of the cells, laid over the picture.

    `image` is a tensor (3, H, W) or (H, W), an array, a PIL picture, or None; bytes or values in [0, 1]. A cell with a
    weight of exactly zero is left clear, so that sparsity shows; negative weights, which effective weights may have,
    are hatched where they are not mere ripples (beyond 1 % of the largest). `vmax` is the weight at the bright end of
    the scale, the largest if not given.

    >>> import torch
    >>> figure = grid(torch.rand(3, 40, 60), torch.rand(4, 6).softmax(-1) / 4)
    >>> [len(a.images) for a in figure.axes[:1]]
    [2]
    """
    figure, ax = beside_bar(ax, image)
    values = on_grid(weights)
    norm = scale(float(values.max()) if vmax is None else vmax)
    backdrop(ax, image)
    draw_weights(ax, values, norm)
    if bar:
        colour_bar(figure, norm, "weight", ax=ax)
    return figure


def draw_weights(ax: Axes, values: Array, norm: Normalize) -> None:
    """Cells over what is already there: the brighter and the more opaque, the heavier."""
    strength = numpy.clip(numpy.asarray(norm(values)), 0, 1)
    seen = numpy.where(values > 0, 0.35 + 0.55 * strength, 0.0)
    below = numpy.ma.masked_where(values >= -RIPPLE * values.max(), numpy.ones_like(values))
    if below.count():
        height, width = values.shape
        edges = numpy.linspace(0, 1, width + 1), numpy.linspace(0, 1, height + 1)
        ax.pcolor(*edges, below, hatch="////", facecolor="none", edgecolor="white", linewidth=0, alpha=0.35)
        ax.set(xlim=(0, 1), ylim=(1, 0))
    ax.imshow(
        values,
        cmap=COLOUR_MAP,
        norm=norm,
        alpha=seen,
        extent=(0, 1, 1, 0),
        interpolation="nearest",
        aspect=ax.get_aspect(),
    )
