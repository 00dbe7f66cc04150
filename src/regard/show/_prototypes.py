"""Prototypes, shown by the crops nearest to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from matplotlib.axes import Axes
from torch import Tensor

from regard import _check
from regard.show._canvas import AnyFigure, axes, pixels

GAP = 0.06  # between tiles, in tiles
TITLE = 1.2  # the width of a row's title, in tiles


def prototypes(
    crops: Sequence[Tensor] | Tensor,
    scores: Tensor,
    which: Sequence[int] | None = None,
    ax: Axes | None = None,
    *,
    nearest: int = 8,
    columns: int = 1,
) -> AnyFigure:
    """One row per prototype: the crops with the highest scores, best first, each with its score.

    The title of a row says how many of the N crops are nearest to it.

    `crops`: (N, 3, H, W), or a sequence of pictures of any size.
    `scores`: (N, K), such as cosines to the prototypes.
    `which`: the prototypes to show; default the first ten.
    `ax`: axes to draw into; default those of a new figure.
    `nearest`: crops per prototype; default 8.
    `columns`: columns of prototypes, filled one after the other; default 1.

    >>> import torch
    >>> figure = prototypes(torch.rand(20, 3, 8, 8), torch.randn(20, 4), nearest=5)
    >>> len(figure.axes[0].images)
    20
    """
    _check.floating("scores", scores)
    if scores.dim() != 2 or scores.shape[0] != len(crops) or 0 in scores.shape:
        expected = f"({len(crops)}, K): one row for each crop"
        _check.complain("scores", f"shape {tuple(scores.shape)}", expected, "Score every crop against each prototype.")
    _check.finite("scores", scores)
    count = scores.shape[1]
    rows = list(range(min(10, count))) if which is None else list(which)
    if not rows or not all(0 <= k < count for k in rows):
        _check.complain("which", rows, f"prototypes from 0 to {count - 1}", "Leave it out for the first ten.")
    nearest = min(_check.count("nearest", nearest), len(crops))
    scores = scores.detach().cpu().double()
    best = scores.topk(nearest, 0)
    chosen = scores.argmax(1).bincount(minlength=count)
    columns = min(_check.count("columns", columns), len(rows))
    lines, width = -(-len(rows) // columns), nearest + TITLE
    figure, ax = axes(ax, (0.95 * width * columns + 0.1, 1.1 * lines + 0.1))
    for number, k in enumerate(rows):
        start, top = number // lines * width, number % lines * 1.2
        for place in range(nearest):
            left = start + place
            ax.imshow(
                numpy.asarray(pixels(crops[int(best.indices[place, k])])),
                extent=(left + GAP, left + 1 - GAP, top + 1 - GAP, top + GAP),
                cmap="gray",
                vmin=0,
                vmax=1,
            )
            ax.text(left + 0.5, top + 1.08, f"{float(best.values[place, k]):.2f}", ha="center", va="center", fontsize=7)
        label = f"prototype {k}\nnearest to {int(chosen[k])}"
        ax.text(start - 0.1, top + 0.5, label, ha="right", va="center", fontsize=8)
    ax.set(xlim=(-TITLE, columns * width - TITLE), ylim=(1.2 * lines, 0), aspect="equal")
    ax.set_axis_off()
    return figure
