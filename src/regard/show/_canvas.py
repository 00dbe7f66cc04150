"""What all pictures share: the axes, the image under the attention, the colours.

Pictures of a plane are drawn on the unit square, x to the right and y down, as in `regard.continuous.grid`.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from matplotlib import colormaps, patheffects
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from torch import Tensor

from regard import _check

Image = Any  # a tensor (3, H, W) or (H, W), an array (H, W, 3) or (H, W), a PIL picture, or None
Array = NDArray[Any]
AnyFigure = Figure | SubFigure

# Perceptually uniform, and safe for the colour-blind; without the darkest quarter, so that in grey print too the
# faintest attention is no darker than the dimmed picture under it.
COLOUR_MAP = ListedColormap(colormaps["viridis"](numpy.linspace(0.25, 1, 256)), "regard")
DIMMED = 0.42  # the brightest pixel of the image under the attention
# Black around white lines and text, which are then visible on any picture.
HALO: list[patheffects.AbstractPathEffect] = [patheffects.withStroke(linewidth=2.6, foreground="black")]
THICK_HALO: list[patheffects.AbstractPathEffect] = [patheffects.withStroke(linewidth=4.5, foreground="black")]


def axes(ax: Axes | None, size: tuple[float, float] = (4, 4)) -> tuple[AnyFigure, Axes]:
    """The figure and the axes to draw into: `ax`, or those of a new figure of `size` inches, without global state."""
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").subplots()
    return ax.figure, ax


def beside_bar(ax: Axes | None, image: Image) -> tuple[AnyFigure, Axes]:
    """As `axes`, for one picture with a colour bar beside it, in the shape of the picture."""
    shape = (1, 1) if image is None else pixels(image).shape
    return axes(ax, (4.6, min(8.0, max(1.6, 3.6 * shape[0] / shape[1]))))


def colour_bar(figure: AnyFigure, norm: Normalize, label: str, **place: Any) -> None:
    """Add a colour bar; its colours are opaque, whatever the opacity of the drawing."""
    figure.colorbar(ScalarMappable(norm, COLOUR_MAP), label=label, **place)


def pixels(image: Image) -> Array:
    """Grey or RGB values in [0, 1] of a picture in any form of `Image`, as (H, W) or (H, W, 3)."""
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        if image.dim() == 3 and image.shape[0] in (1, 3):
            image = image.movedim(0, -1)
        image = image.float().numpy() if image.dtype.is_floating_point else image.numpy()
    values = numpy.asarray(image)
    if values.ndim == 3 and values.shape[2] in (1, 4):
        values = values[:, :, 0] if values.shape[2] == 1 else values[:, :, :3]
    if values.ndim not in (2, 3) or 0 in values.shape or (values.ndim == 3 and values.shape[2] != 3):
        expected = "(3, H, W), (H, W, 3) or (H, W)"
        _check.complain("image", f"shape {values.shape}", expected, "Pass one picture, not a batch.")
    if numpy.issubdtype(values.dtype, numpy.integer):
        values = values / 255
    clipped: Array = numpy.clip(numpy.asarray(values, dtype=float), 0, 1)
    return clipped


def backdrop(ax: Axes, image: Image) -> None:
    """The image in dimmed grey on the unit square, or a black square for None."""
    values = numpy.zeros((1, 1)) if image is None else pixels(image)
    grey = values @ [0.299, 0.587, 0.114] if values.ndim == 3 else values
    ax.imshow(grey * DIMMED, cmap="gray", vmin=0, vmax=1, extent=(0, 1, 1, 0), interpolation="nearest")
    ax.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect=grey.shape[0] / grey.shape[1])


def on_grid(weights: Tensor) -> Array:
    """Weights (h, w) of one picture as an array, checked."""
    _check.floating("weights", weights)
    if weights.dim() != 2 or 0 in weights.shape:
        got = f"shape {tuple(weights.shape)}"
        _check.complain("weights", got, "(height, width)", "Reshape one example's weights to its grid.")
    _check.finite("weights", weights)
    return weights.detach().cpu().double().numpy()


def scale(vmax: float, even: bool = True) -> Normalize:
    """A scale from zero to `vmax`: linear if `even`, else by the square root, which brightens faint panels."""
    top = vmax if vmax > 0 else 1.0
    return Normalize(0, top) if even else PowerNorm(0.5, 0, top)


def lattice(height: int = 160, width: int = 160) -> tuple[Array, Array, Tensor]:
    """x and y of the points of a fine lattice on the unit square, and the points (height * width, 2)."""
    y, x = torch.meshgrid(
        (torch.arange(height, dtype=torch.float64) + 0.5) / height,
        (torch.arange(width, dtype=torch.float64) + 0.5) / width,
        indexing="ij",
    )
    return x.numpy(), y.numpy(), torch.stack([x.flatten(), y.flatten()], -1)
