"""Transport plans: as a matrix with its marginals, or as lines between two sets of points."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from regard import _check
from regard.maps.sinkhorn import Transport
from regard.show._canvas import COLOUR_MAP, AnyFigure, axes


def transport(
    plan: Tensor | Transport, x: Tensor | None = None, y: Tensor | None = None, ax: Axes | None = None
) -> AnyFigure:
    """A plan (B, K): the mass that goes from each row to each column, with the marginals along two sides.

    `plan`: masses, or the result of `sinkhorn`.
    `x`, `y`: points (B, 2) and (K, 2); if passed, lines between them instead of a matrix, darker and wider for more
    mass; default None.
    `ax`: axes to draw into; default those of a new figure.

    >>> import torch
    >>> from regard import sinkhorn
    >>> figure = transport(sinkhorn(torch.rand(8, 3), eps=0.1, tol=1e-4))
    >>> figure.axes[0].get_xlabel()
    'column'
    """
    mass = plan.plan if isinstance(plan, Transport) else plan
    _check.floating("plan", mass)
    if mass.dim() != 2 or 0 in mass.shape:
        _check.complain("plan", f"shape {tuple(mass.shape)}", "(B, K), not empty", "Pick one plan of the batch.")
    _check.nonnegative("plan", mass, "A plan holds masses, not scores: see sinkhorn.")
    mass = mass.detach().cpu().double()
    if (x is None) != (y is None):
        _check.complain("x, y", "one of the two", "both or neither", "Lines need both ends.")
    if x is not None and y is not None:
        return _draw_lines(mass, x, y, ax)
    figure, ax = axes(ax, (4.6, 4))
    matrix = ax.imshow(mass.numpy(), cmap=COLOUR_MAP, vmin=0, aspect="auto", interpolation="nearest")
    ax.set(xlabel="column", ylabel="row")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    rows, columns = mass.shape
    right, top = ax.inset_axes((1.02, 0, 0.12, 1), sharey=ax), ax.inset_axes((0, 1.02, 1, 0.12), sharex=ax)
    right.barh(range(rows), mass.sum(1).tolist(), height=1, color="#3b9fb5", edgecolor="white", linewidth=0.5)
    top.bar(range(columns), mass.sum(0).tolist(), width=1, color="#3b9fb5", edgecolor="white", linewidth=0.5)
    for side in (right, top):
        side.set_axis_off()
    figure.colorbar(matrix, ax=ax, shrink=0.8, label="mass", pad=0.18)
    return figure


def _draw_lines(mass: Tensor, x: Tensor, y: Tensor, ax: Axes | None) -> AnyFigure:
    for argument, points, count in (("x", x, mass.shape[0]), ("y", y, mass.shape[1])):
        _check.floating(argument, points)
        if points.shape != (count, 2):
            _check.complain(argument, f"shape {tuple(points.shape)}", f"({count}, 2)", "One point on the plane each.")
    figure, ax = axes(ax)
    x, y = x.detach().cpu().double(), y.detach().cpu().double()
    share = mass / mass.max().clamp_min(torch.finfo(torch.float64).tiny)
    pairs = (share > 0.01).nonzero().tolist()  # fainter lines are invisible, and there may be B x K of them
    lines = [(x[i].tolist(), y[j].tolist()) for i, j in pairs]
    strength = [float(share[i, j]) for i, j in pairs]
    ax.add_collection(
        LineCollection(
            lines,
            colors="black",
            alpha=[0.15 + 0.75 * s for s in strength],
            linewidths=[0.4 + 2.2 * s for s in strength],
        )
    )
    ax.scatter(x[:, 0].tolist(), x[:, 1].tolist(), s=45, color="#222a55", edgecolor="white", label="rows", zorder=3)
    ax.scatter(
        y[:, 0].tolist(),
        y[:, 1].tolist(),
        s=55,
        color="#f2d45c",
        edgecolor="black",
        marker="s",
        label="columns",
        zorder=3,
    )
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    return figure
