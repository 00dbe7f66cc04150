"""The maps on a photograph: one patch attends to all patches, under each map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor

from regard._files import replacing
from regard.affinity import Dot
from regard.attention.arguments import Map
from regard.attention.weights import attention_weights
from regard.maps.entmax import entmax, softmax, sparsemax
from regard.maps.tvmax import tvmax

ROWS, COLUMNS = 20, 30  # patches of 15 x 15 pixels
QUERY = (7, 10)  # row and column of the query patch: an eye of the cat


@dataclass(frozen=True)
class Shown:
    """One map on the photograph: its weights on the grid of patches, and their statistics."""

    name: str
    weights: Tensor  # (ROWS, COLUMNS)

    @property
    def support(self) -> float:
        """Share of the patches with a weight above zero."""
        return float((self.weights > 0).double().mean())

    @property
    def entropy(self) -> float:
        """Shannon entropy in bits; log2 of the number of patches when all weigh the same."""
        return float(torch.special.entr(self.weights.double()).sum()) / math.log(2)

    @property
    def variation(self) -> float:
        """Total variation over the grid: the sum of absolute differences between neighbours."""
        p = self.weights.double()
        return float(p.diff(dim=0).abs().sum() + p.diff(dim=1).abs().sum())


@dataclass(frozen=True)
class DrawnMaps:
    """What was drawn."""

    picture: Path
    maps: list[Shown]

    def table(self) -> str:
        """The statistics of every map, as a table of text."""
        lines = [f"{'map':<14}{'patches in support':>20}{'entropy (bits)':>16}{'total variation':>17}"]
        lines += [f"{m.name:<14}{m.support:>19.1%} {m.entropy:>16.2f}{m.variation:>17.3f}" for m in self.maps]
        return "\n".join(lines)


def draw_maps(out: Path | str) -> DrawnMaps:
    """Compute the weights of one query patch under each map, draw them over the photograph, write it to `out`."""
    image = _photograph()
    maps = weigh(image)
    out = Path(out).resolve()
    _draw_panels(image, maps, out)
    return DrawnMaps(out, maps)


def weigh(image: Tensor) -> list[Shown]:
    """The weights of the query patch on all patches of a picture (3, H, W) with values in [0, 1]."""
    features = describe_patches(image)
    query = features[QUERY[0] * COLUMNS + QUERY[1]].unsqueeze(0)
    maps: dict[str, Map] = {
        "softmax": softmax,
        "entmax 1.5": entmax,
        "sparsemax": sparsemax,
        "TVmax 0.05": partial(tvmax, gamma=0.05, shape=(ROWS, COLUMNS)),
        "TVmax 0.2": partial(tvmax, gamma=0.2, shape=(ROWS, COLUMNS)),
    }
    return [
        Shown(name, attention_weights(query, features, Dot(1.0), map).reshape(ROWS, COLUMNS))
        for name, map in maps.items()
    ]


def patch_grid(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of about as many patches, of about the shape of a square, for a picture of any shape.

    >>> patch_grid(300, 450), patch_grid(100, 100), patch_grid(1, 5000)
    ((20, 30), (24, 24), (1, 600))
    """
    cells = ROWS * COLUMNS
    rows, columns = (round(math.sqrt(cells * ratio)) for ratio in (height / width, width / height))
    return min(cells, max(1, rows)), min(cells, max(1, columns))


def describe_patches(image: Tensor, grid: tuple[int, int] = (ROWS, COLUMNS)) -> Tensor:
    """A unit vector for each patch (rows * columns, d): its brightness and two opponent colours.

    `image`: (3, H, W) with values in [0, 1].
    `grid`: rows and columns; default those of the photograph. Patches that are all alike have zeros.
    """
    red, green, blue = image
    bright = (red + green + blue) / 3
    colours = torch.stack([bright, (red - green) / (bright + 0.05), ((red + green) / 2 - blue) / (bright + 0.05)])
    cells = torch.nn.functional.adaptive_avg_pool2d(colours, grid).flatten(1).T
    spread = cells.std(0, correction=0)
    cells = torch.where(spread > 1e-6, (cells - cells.mean(0)) / spread.clamp_min(1e-6), 0.0)
    return torch.nn.functional.normalize(cells, dim=-1)


def _photograph() -> Tensor:
    import numpy
    from PIL import Image

    with as_file(files("regard") / "assets" / "cat.jpg") as path, Image.open(path) as picture:
        pixels = numpy.asarray(picture.convert("RGB"), dtype=numpy.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _draw_panels(image: Tensor, maps: list[Shown], out: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = image.shape[1:]
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes = figure.subplots(2, -(-(len(maps) + 1) // 2)).flatten()
    grey = image.mean(0).numpy()
    for ax in axes:
        ax.set_axis_off()
    for ax, shown in zip(axes, [None, *maps], strict=False):
        if shown is None:
            ax.imshow(image.permute(1, 2, 0).numpy())
            ax.set_title("the query patch")
        else:
            ax.imshow(grey, cmap="gray", vmin=-0.2, vmax=1.6)
            relative = (shown.weights / shown.weights.max()).numpy()
            opacity = (0.4 + 0.6 * relative) * (relative > 0)
            overlay = ax.imshow(
                relative, cmap="viridis", vmin=0, vmax=1, alpha=opacity, extent=(0, width, height, 0), zorder=2
            )
            ax.set_title(f"{shown.name}: {shown.support:.0%} of the patches")
        corner = (QUERY[1] * width / COLUMNS, QUERY[0] * height / ROWS)
        box = Rectangle(corner, width / COLUMNS, height / ROWS, fill=False, edgecolor="cyan", linewidth=2, zorder=3)
        ax.add_patch(box)
    figure.colorbar(overlay, ax=axes, shrink=0.6, label="weight, relative to the largest of its map")
    with replacing(out) as beside:
        figure.savefig(beside, dpi=100, format=out.suffix.lstrip(".") or "png")
