"""Cells of a picture for MCAN: their coordinates, a convolution over neighbours, whitening of features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

FREQUENCIES = 4  # of the sines and cosines of a coordinate


class Neighbours(nn.Module):
    """Features of cells (B, L, D) to (B, L, width), each from the cell and its eight neighbours."""

    def __init__(self, features: int, width: int, cells: tuple[int, int]) -> None:
        """Make the layers."""
        super().__init__()
        self.cells = cells
        self.around = nn.Conv2d(features, width, 3, padding=1)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """A 3 x 3 convolution, ReLU, a linear layer."""
        y = self.around(x.transpose(1, 2).unflatten(2, self.cells)).relu()
        out: Tensor = self.out(y.flatten(2).transpose(1, 2))
        return out


def whitening(covariance: Tensor, scale: Tensor) -> Tensor:
    """The symmetric matrix W (ZCA) for which centred rows have about unit covariance after `rows @ W`.

    Channels are multiplied by `scale` first. A hundredth of the mean variance is added to each direction, so that
    those with hardly any variance are not amplified.
    """
    variances, directions = torch.linalg.eigh(scale[:, None] * covariance * scale)
    size = (variances.clamp_min(0) + 1e-2 * variances.mean()).clamp_min(1e-6).rsqrt()
    white: Tensor = scale[:, None] * (directions * size) @ directions.T
    return white


def coordinates(height: int, width: int) -> Tensor:
    """Where each cell is, (height * width, 18): its centre in [-1, 1], and sines and cosines of it.

    All at unit scale, without which questions about places are hardly learned.

    >>> coordinates(2, 2)[:, :2].tolist()
    [[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]
    """
    y, x = ((torch.arange(n) + 0.5) / n * 2 - 1 for n in (height, width))
    centre = torch.cartesian_prod(y, x).flip(-1)
    waves = [f(2**k * math.pi / 2 * centre) for k in range(FREQUENCIES) for f in (torch.sin, torch.cos)]
    return torch.cat([centre, *waves], -1)
