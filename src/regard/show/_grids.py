"""Discrete attention over a picture."""

from __future__ import annotations

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from torch import Tensor

from regard.show._canvas import COLOUR_MAP, AnyFigure, Array, Image, backdrop, beside_bar, colour_bar, on_grid, scale

RIPPLE = 0.01  # share of the largest weight: negative weights below it are not drawn


def grid(
    image: Image, weights: Tensor, ax: Axes | None = None, *, vmax: float | None = None, bar: bool = True
) -> AnyFigure:
    """The weights (h, w) of the cells, laid over the picture.

    A cell with a weight of exactly zero is left clear, so that sparsity shows. Negative weights, which effective
    weights may have, are hatched if they exceed 1 % of the largest weight.

    `image`: a tensor (3, H, W) or (H, W), an array, a PIL picture, or None; bytes or values in [0, 1].
    `weights`: (h, w).
    `ax`: axes to draw into; default those of a new figure.
    `vmax`: the weight at the bright end of the scale; default the largest.
    `bar`: draw a colour bar; default True.

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
    """Draw cells into axes that have a backdrop: larger weights are brighter and more opaque."""
    strength = numpy.clip(numpy.asarray(norm(values)), 0, 1)
    opacity = numpy.where(values > 0, 0.35 + 0.55 * strength, 0.0)
    negative = numpy.ma.masked_where(values >= -RIPPLE * values.max(), numpy.ones_like(values))
    if negative.count():
        height, width = values.shape
        edges = numpy.linspace(0, 1, width + 1), numpy.linspace(0, 1, height + 1)
        ax.pcolor(*edges, negative, hatch="////", facecolor="none", edgecolor="white", linewidth=0, alpha=0.35)
        ax.set(xlim=(0, 1), ylim=(1, 0))
    ax.imshow(
        values,
        cmap=COLOUR_MAP,
        norm=norm,
        alpha=opacity,
        extent=(0, 1, 1, 0),
        interpolation="nearest",
        aspect=ax.get_aspect(),
    )
