"""Several attentions on one picture, side by side; and the PNG of a density in a notebook."""

from __future__ import annotations

import io
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard import _check
from regard.continuous import Density
from regard.continuous.members import members
from regard.show import _densities, _grids
from regard.show._canvas import AnyFigure, Image, backdrop, colour_bar, on_grid, pixels, scale
from regard.show._lines import curve

MOST_MEMBERS = 6  # members of a batch that a notebook shows


def compare(
    image: Image,
    attentions: Mapping[str, Tensor | Density],
    ax: Axes | None = None,
    *,
    columns: int = 4,
    original: bool = True,
) -> AnyFigure:
    """Weights (h, w) and densities on the plane, side by side on one picture, with one scale and one colour bar.

    Weights are densities per area of the picture, as densities are: 1 is even attention on both.
    The scale is a square root, so that a broad attention is visible beside a peaked one.

    `image`: as in `grid`.
    `attentions`: weights or densities, by title.
    `ax`: axes whose area the panels share; default a new figure.
    `columns`: panels per row; default 4.
    `original`: show the picture itself first; default True.

    >>> import torch
    >>> from regard.continuous import grid, match_moments
    >>> weights = torch.rand(14, 14).flatten().softmax(-1)
    >>> figure = compare(None, {"weights": weights.view(14, 14), "density": match_moments(weights, grid(14, 14))})
    >>> [a.get_title() for a in figure.axes[:2]]
    ['weights', 'density']
    """
    if not attentions:
        _check.complain("attentions", "nothing", "at least one name with weights or a density", "Pass a dict.")
    first = int(original and image is not None)
    count = len(attentions) + first
    columns = min(_check.count("columns", columns), count)
    rows = -(-count // columns)
    ratio = 1.0 if image is None else pixels(image).shape[0] / pixels(image).shape[1]
    figure, panels, bar = _panels(ax, rows, columns, ratio)
    values = {
        name: _densities.sampled(a) if isinstance(a, Density) else on_grid(a) * a.numel()
        for name, a in attentions.items()
    }
    norm = scale(max(float(v.max()) for v in values.values()), even=False)
    if first:
        panels[0].imshow(pixels(image), extent=(0, 1, 1, 0), cmap="gray", vmin=0, vmax=1)
        panels[0].set(xticks=[], yticks=[], aspect=ratio, title="picture")
    for panel, (name, attention) in zip(panels[first:], attentions.items(), strict=False):
        backdrop(panel, image)
        if isinstance(attention, Density):
            _densities.draw_density(panel, attention, values[name], norm)
        else:
            _grids.draw_weights(panel, values[name], norm)
        panel.set(title=name, aspect=ratio)
    for panel in panels[count:]:
        panel.set_axis_off()
    place = {"ax": panels, "shrink": 0.8} if bar is None else {"cax": bar}
    colour_bar(figure, norm, "density (1 = even attention)", **place)
    return figure


def png(density: Density) -> bytes | None:
    """A density as a notebook shows it, as PNG: contours on the plane, a curve on a line; up to six members of a batch.

    None, for which a notebook shows the `repr`, in more than two dimensions or for an empty batch.

    >>> import torch
    >>> from regard.continuous import Gaussian
    >>> png(Gaussian(torch.zeros(1), torch.eye(1)))[:4]
    b'\\x89PNG'
    """
    dimensions = density.event_shape[0]
    if dimensions > 2 or 0 in density.batch_shape:
        return None
    densities = members(density)[:MOST_MEMBERS]
    if dimensions == 1:
        figure: AnyFigure = Figure(figsize=(5, 2.5), layout="constrained")
        curve(figure.subplots(), densities)
    elif len(densities) == 1:
        figure = _densities.density(None, densities[0])
    else:
        figure = compare(None, {f"[{i}]": member for i, member in enumerate(densities)}, columns=3)
    assert isinstance(figure, Figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    return file.getvalue()


def _panels(ax: Axes | None, rows: int, columns: int, ratio: float) -> tuple[AnyFigure, list[Axes], Axes | None]:
    """The figure, its panels row by row, and the axes of the colour bar; None where the layout places it.

    `ax`: axes to divide; None for a new figure.
    `rows`, `columns`: of panels.
    `ratio`: height by width of a panel.
    """
    if ax is None:
        figure = Figure(figsize=(2.8 * columns + 0.7, rows * (2.8 * ratio + 0.35)), layout="constrained")
        return figure, list(figure.subplots(rows, columns, squeeze=False).flatten()), None
    ax.set_axis_off()
    width, height = 0.9 / columns, 1 / rows
    places = [(c * width, 1 - (r + 1) * height) for r in range(rows) for c in range(columns)]
    panels = [ax.inset_axes((x, y, 0.92 * width, 0.85 * height)) for x, y in places]
    return ax.figure, panels, ax.inset_axes((0.92, 0.1, 0.02, 0.8))
