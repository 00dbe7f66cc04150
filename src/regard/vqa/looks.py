"""Where an attention looks: its highest point, and the share of the picture that holds half of it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.continuous import Density, Mixture
from regard.vqa.attention_quality import attention_map, half_area

_MEASURED_SIDE = 192  # of the map that the share of the picture is measured on
_LATTICE, _ZOOMS = 64, 4  # points of a side; times that the search goes on between its neighbours


def highest_point(weights: Tensor, density: Density | None) -> tuple[float, float]:
    """The highest point (x, y) of an attention on the unit square, x to the right, y down.

    Of a density, its highest point in the picture. Without one, the middle of the cell with the largest weight; of
    several cells with that weight the one nearest to their common middle, so that the point is always on one of them.

    `weights`: of the cells, (h, w).
    `density`: one on the plane, without a batch; None for a discrete attention.

    >>> highest_point(torch.tensor([[0.1, 0.2], [0.3, 0.4]]), None)
    (0.75, 0.75)
    >>> from regard.continuous import Gaussian
    >>> highest_point(torch.full((2, 2), 0.25), Gaussian(torch.tensor([0.25, 0.5]), 0.01 * torch.eye(2)))
    (0.25, 0.5)
    """
    if density is None:
        return _highest_cell(weights)
    parts = density.parts.mean[density.mixing > 0] if isinstance(density, Mixture) else density.mean.reshape(1, 2)
    steps = (torch.arange(_LATTICE) + 0.5) / _LATTICE
    points = torch.cat([parts.detach().double().cpu(), torch.cartesian_prod(steps, steps).double()])
    best = _highest_of(density, points)
    window = 1 / _LATTICE
    for _ in range(_ZOOMS):
        offsets = torch.linspace(-window, window, 11, dtype=torch.float64)
        # The best so far comes first: only a higher point replaces it.
        best = _highest_of(density, torch.cat([best[None], best + torch.cartesian_prod(offsets, offsets)]))
        window /= 5
    x, y = best.tolist()
    return x, y


def _highest_of(density: Density, points: Tensor) -> Tensor:
    inside = points.clamp(0, 1)
    with torch.no_grad():
        values = density.pdf(inside.to(density.mean)).reshape(-1)
    return inside[int((values == values.max()).nonzero()[0])]  # the first; argmax may give any


def _highest_cell(weights: Tensor) -> tuple[float, float]:
    height, width = weights.shape
    tied = (weights >= weights.max() * (1 - 1e-6)).nonzero().double()
    row, column = tied[int((tied - tied.mean(0)).square().sum(-1).argmin())].tolist()
    return (column + 0.5) / width, (row + 0.5) / height


def half_of_attention(weights: Tensor, density: Density | None) -> float:
    """The smallest share of the picture that holds half of the attention, from 0 to 0.5; arguments as `highest_point`.

    >>> half_of_attention(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), None)
    0.125
    """
    cells = weights.detach().float().cpu()[None]
    # On the cells of a discrete attention it is exact; pixels would cut through them.
    return float(
        half_area(cells if density is None else attention_map(cells, density, (_MEASURED_SIDE, _MEASURED_SIDE)).cpu())
    )


def looks_in_words(weights: Tensor, density: Density | None) -> str:
    """Where an attention looks most, and how much of the picture holds half of it; arguments as `highest_point`.

    >>> looks_in_words(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), None)
    'looks most at 25 % from the left, 25 % from the top; half of the attention lies on 12 % of the picture'
    """
    x, y = highest_point(weights, density)
    place = f"looks most at {100 * x:.0f} % from the left, {100 * y:.0f} % from the top"
    return (
        f"{place}; half of the attention lies on {share_in_words(half_of_attention(weights, density))} of the picture"
    )


def share_in_words(share: float) -> str:
    """A share in percent, with a decimal only where it is small.

    >>> share_in_words(0.123), share_in_words(0.0042), share_in_words(0.0001)
    ('12 %', '0.4 %', 'less than 0.1 %')
    """
    return "less than 0.1 %" if share < 0.001 else f"{100 * share:.{1 if share < 0.02 else 0}f} %"
