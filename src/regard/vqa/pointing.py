"""The pointing game: does the highest point of an attention map lie in the region?

Legend: B batch, H x W pixels of a map, h x w cells, P points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

POINTING_TOLERANCE = 0.05  # of the picture's side: how far from the region the highest point may lie
_TIED = 1 - 1e-6  # values within this factor of the highest are as high


def cell_of(pixels: int, cells: int) -> Tensor:
    """The cell that the centre of each pixel lies in, along one side: (pixels,).

    >>> cell_of(7, 2).tolist()
    [0, 0, 0, 1, 1, 1, 1]
    """
    # In whole numbers: a centre on the border of two cells belongs to the second on every machine.
    return (2 * torch.arange(pixels) + 1) * cells // (2 * pixels)


def pointing_of_cells(values: Tensor, inside: Tensor) -> Tensor:
    """The share of the highest cells whose middle lies in the region or near it, by their pixels: (B,).

    `values`: of the cells, (B, h, w).
    `inside`: the region, boolean (B, H, W).

    >>> pointing_of_cells(torch.ones(1, 2, 2), torch.ones(1, 8, 8, dtype=torch.bool).tril(-4))
    tensor([0.2500], dtype=torch.float64)
    """
    cells, size = values.shape[1:], inside.shape[1:]
    middles, counts = zip(*(_middles(n, c) for n, c in zip(size, cells, strict=True)), strict=True)
    pixels = counts[0][:, None] * counts[1]
    tied = (values >= values.amax((1, 2), keepdim=True) * _TIED) & (pixels > 0)
    example, row, column = tied.nonzero(as_tuple=True)
    return _shares(inside, example, middles[0][row], middles[1][column], pixels[row, column])


def pointing_of_pixels(maps: Tensor, inside: Tensor, cells: tuple[int, int]) -> Tensor:
    """The share of the highest pixels that lie in the region or near it: (B,).

    Highest pixels in one cell count as one point, their middle: a cell is as fine as an attention on cells points.

    `maps`: (B, H, W).
    `inside`: the region, boolean (B, H, W).
    `cells`: h, w.
    """
    size = maps.shape[1:]
    highest = maps >= maps.amax((1, 2), keepdim=True) * _TIED
    # Nearly always one pixel is highest, and found without a list of all that are.
    if int(highest.sum()) == len(maps):
        place = maps.flatten(1).argmax(1)
        points = torch.arange(len(maps)), place // size[1] + 0.5, place % size[1] + 0.5
        return _shares(inside, *points, torch.ones(len(maps)))
    example, row, column = highest.nonzero(as_tuple=True)
    rows, columns = (cell_of(n, c) for n, c in zip(size, cells, strict=True))
    group = (example * cells[0] + rows[row]) * cells[1] + columns[column]
    known, index = group.unique(return_inverse=True)
    count, y, x = (
        torch.zeros(len(known), dtype=torch.float64).index_add(0, index, values.double())
        for values in (torch.ones(len(index)), row + 0.5, column + 0.5)
    )
    return _shares(inside, known // (cells[0] * cells[1]), y / count, x / count, count)


def _middles(pixels: int, cells: int) -> tuple[Tensor, Tensor]:
    """The middle of each cell along one side, in pixels, and how many pixels it has."""
    cell = cell_of(pixels, cells)
    count = torch.zeros(cells, dtype=torch.float64).index_add(0, cell, torch.ones(pixels, dtype=torch.float64))
    middle = torch.zeros(cells, dtype=torch.float64).index_add(0, cell, torch.arange(pixels).double() + 0.5)
    return middle / count.clamp_min(1), count


def _shares(inside: Tensor, example: Tensor, y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The weighted share of the points of each example that are hits: (B,)."""
    totals = torch.zeros(2, len(inside), dtype=torch.float64)
    hits = _near(inside, example, y, x).double() * weight
    totals = totals.index_add(1, example, torch.stack([hits, weight.double()]))
    return totals[0] / totals[1].clamp_min(1)


def _near(inside: Tensor, example: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Whether points (y, x), in pixels, lie within the tolerance of the nearest edge of a pixel inside: (P,)."""
    around = []
    for side, at in zip(inside.shape[1:], (y, x), strict=True):
        reach = math.ceil(POINTING_TOLERANCE * side) + 1
        pixel = at.floor().long()[:, None] + torch.arange(-reach, reach + 1)
        distance = ((pixel + 0.5 - at[:, None]).abs() - 0.5).clamp_min(0) / side
        distance = distance.masked_fill((pixel < 0) | (pixel >= side), torch.inf)
        around.append((pixel.clamp(0, side - 1), distance))
    (rows, dy), (columns, dx) = around
    found = inside[example[:, None, None], rows[:, :, None], columns[:, None, :]]
    close = dy.square()[:, :, None] + dx.square()[:, None, :] <= POINTING_TOLERANCE**2
    return (found & close).flatten(1).any(1)
