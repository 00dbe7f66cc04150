"""One query under every map, side by side: weights on the picture, how many patches they are on, mass in a region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps.entmax import Entmax, Softmax, Sparsemax
from regard.maps.normmax import Normmax
from regard.maps.tvmax import tvmax

Outline = Sequence[tuple[float, float]]  # corners, across and down, both from 0 to 1

_FINE = 8  # pixels along the side of a cell, where an outline is drawn
_OUTSIDE = 1e-9  # a region with less of the picture is none


def maps_of(scores: Tensor, alpha: float, gamma: float) -> dict[str, Tensor]:
    """The weights (h, w) of each map by its label, of scores (H, h, w) of patches; heads are averaged after the map.

    `alpha`: of entmax.
    `gamma`: of TVmax.

    >>> list(maps_of(torch.zeros(2, 3, 4), 1.5, 0.1))
    ['softmax', 'entmax 1.5', 'sparsemax', 'TVmax 0.1', 'normmax 2']
    """
    flat = scores.flatten(1)
    flat = flat - flat.amax(-1, keepdim=True)
    made = {"softmax": Softmax()(flat), f"entmax {alpha:g}": Entmax(alpha)(flat), "sparsemax": Sparsemax()(flat)}
    made[f"TVmax {gamma:g}"] = tvmax(flat, gamma, shape=(scores.shape[1], scores.shape[2]))
    made["normmax 2"] = Normmax(2.0)(flat)
    return {label: p.mean(0).view(scores.shape[1:]) for label, p in made.items()}


@dataclass(frozen=True)
class MeasuredWeights:
    """Weights on patches in numbers.

    `effective`: the effective number of patches, e to the entropy.
    `support`: share of the patches with any weight.
    `mass`: the share of the weights in a region.
    `chance`: the region's share of the picture, which is what equal weights have in it.
    `low`, `high`: 95 % of the places where a region of this shape could lie have a mass between these.
    """

    effective: float
    support: float
    mass: float | None = None
    chance: float | None = None
    low: float | None = None
    high: float | None = None


def measure_weights(weights: Tensor, region: Tensor | None) -> MeasuredWeights:
    """The numbers of weights (h, w), which are divided by their sum; `region` is the share of each cell in it.

    The interval is that of the region moved to every place of the grid, around its edges: its mean is `chance`
    exactly, and it has the shape of the region and the smoothness of the weights.

    >>> one = torch.zeros(4, 5)
    >>> one[1, 1] = 2.0
    >>> measure_weights(one, torch.eye(4, 5))
    MeasuredWeights(effective=1.0, support=0.05, mass=1.0, chance=0.2, low=0.0, high=1.0)
    """
    p = weights.double()
    p = p / p.sum().clamp_min(torch.finfo(torch.float64).tiny)
    effective, support = math.exp(float(torch.special.entr(p).sum())), float((p > 0).double().mean())
    effective = round(effective, 9)
    if region is None or float(region.mean()) < _OUTSIDE:
        return MeasuredWeights(effective, support)
    share = region.double()
    places = torch.fft.irfft2(torch.fft.rfft2(p) * torch.fft.rfft2(share).conj(), s=p.shape).clamp(0, 1)
    low, high = places.flatten().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    numbers = (float((p * share).sum()), float(share.mean()), low, high)
    return MeasuredWeights(effective, support, *(round(x, 9) for x in numbers))


def region_on_grid(outline: Outline, grid: tuple[int, int]) -> Tensor:
    """The share of each cell (h, w) that lies inside an outline.

    >>> region_on_grid([(0, 0), (0.5, 0), (0.5, 1), (0, 1)], (1, 4))
    tensor([[1., 1., 0., 0.]])
    """
    import numpy
    from PIL import Image, ImageDraw

    height, width = (_FINE * side for side in grid)
    canvas = Image.new("L", (2 * width, 2 * height))  # a pixel is inside by its centre: half a pixel to the left and up
    ImageDraw.Draw(canvas).polygon([(2 * x * width - 1, 2 * y * height - 1) for x, y in outline], fill=1)
    fine = torch.from_numpy(numpy.asarray(canvas)[::2, ::2].copy()).float()
    return torch.nn.functional.avg_pool2d(fine[None, None], _FINE)[0, 0]
