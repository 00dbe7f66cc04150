"""Attention over a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from regard import _check
from regard.continuous import Density
from regard.show._canvas import AnyFigure, axes

# Different in lightness and hatching, so that colour is not needed.
STYLES = [("#222a55", ""), ("#3b9fb5", "//"), ("#f2d45c", ".."), ("#a3a3a3", "xx")]
LINES = ["-", "--", "-.", ":"]


def weights_1d(
    weights: Tensor | Mapping[str, Tensor],
    tokens: Sequence[str] | None = None,
    density: Density | Mapping[str, Density] | None = None,
    ax: Axes | None = None,
) -> AnyFigure:
    """Bars for the weights (L,) of a sequence, grouped for several maps, with densities on the unit interval.

    `weights`: of one map, or of up to four by name.
    `tokens`: the words under the bars; default positions.
    `density`: drawn as a curve in the same unit, weight per cell: divided by L; default None.
    `ax`: axes to draw into; default those of a new figure.

    >>> import torch
    >>> words = "what colour is the cat".split()
    >>> figure = weights_1d({"softmax": torch.rand(5).softmax(-1), "even": torch.full((5,), 0.2)}, words)
    >>> len(figure.axes[0].patches)
    10
    """
    groups = dict(weights) if isinstance(weights, Mapping) else {"": weights}
    if not 1 <= len(groups) <= len(STYLES):
        _check.complain("weights", f"{len(groups)} groups", f"1 to {len(STYLES)}", "Draw the others into another ax.")
    length = len(next(iter(groups.values())))
    for name, w in groups.items():
        _check.floating("weights", w)
        if w.shape != (length,):
            got = f"shape {tuple(w.shape)}" + (f" for {name!r}" if name else "")
            _check.complain("weights", got, f"({length},), one for each position", "Pass one row.")
        _check.finite("weights", w)
    if tokens is not None and len(tokens) != length:
        _check.complain("tokens", f"{len(tokens)} tokens", f"{length}, as weights", "One for each weight.")
    figure, ax = axes(ax, (max(4.0, min(12.0, 0.55 * length)), 2.8))
    width = 0.84 / len(groups)
    for i, ((name, w), (colour, hatch)) in enumerate(zip(groups.items(), STYLES, strict=False)):
        places = torch.arange(length) - 0.42 + (i + 0.5) * width
        heights = w.detach().cpu().double().tolist()
        ax.bar(places.tolist(), heights, width, color=colour, hatch=hatch, edgecolor="white", label=name or None)
    if density is not None:
        curves = dict(density) if isinstance(density, Mapping) else {"density": density}
        curve(ax, list(curves.values()), list(curves), length)
    ax.set_xticks(range(length), tokens, rotation=45, ha="right") if tokens else ax.set_xlabel("position")
    ax.set(ylabel="weight", xlim=(-0.5, length - 0.5))
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=False)
    return figure


def curve(ax: Axes, densities: Sequence[Density], names: Sequence[str] = (), length: int | None = None) -> None:
    """Draw densities on a line as curves.

    `ax`: axes to draw into.
    `densities`: in one dimension.
    `names`: for the legend; default none.
    `length`: the number of positions, for a curve of weight per cell; default None: the density where its mass is.
    """
    if any(d.event_shape != (1,) or d.batch_shape != () for d in densities):
        _check.complain("density", "a batch, or more dimensions", "one density on a line", "Pick one of the batch.")
    low, high = 0.0, 1.0
    if length is None:
        low = min(float(d.mean - 4 * d.stddev) for d in densities)
        high = max(float(d.mean + 4 * d.stddev) for d in densities)
    t = torch.linspace(low, high, 400, dtype=torch.float64)
    cells = length or 1
    for i, density in enumerate(densities):
        height = density.pdf(t.unsqueeze(-1).to(density.mean)).detach().cpu().double() / cells
        place = t * cells - (0.5 if length else 0)
        name = names[i] if names else None
        ax.plot(place.tolist(), height.tolist(), color="black", linestyle=LINES[i % 4], linewidth=1.6, label=name)
    if length is None:
        ax.set(ylabel="density", ylim=(0, None))
