"""Where a cell lies from what a question marks, and sums over cells beside their mean: parts of MCAN that it may have.

Legend: B questions, P pictures, T words, L cells, D width of a feature, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard._torch import with_values
from regard.maps.entmax import softmax
from regard.nn._computed import ComputedBuffers
from regard.vqa.cells import FREQUENCIES, coordinates

_WAVES = 4 * FREQUENCIES  # sines and cosines of two coordinates
_SUMMED = 32  # channels of a sum
_CLOSED = -2.0  # bias of a gate at first: few cells are open, so that a sum is small


class Marks(ComputedBuffers):
    """The question looks at the picture, and every cell gets where it lies from there.

    Each head pools the words to a query, which attends to the cells; the mean position under that attention is what it
    marks. A cell gets a linear map of its coordinates relative to each mark, with sines and cosines of them, and of a
    gate of its own score. Nothing else of a cell reaches others, so that what a marked object is can be read there
    alone. Where the marks are is `places`, (B, H, 2), in [-1, 1].

    `dim`: D.
    `heads`: H, marks of a question.
    `cells`: (height, width) of the grid.

    >>> marks = Marks(16, 2, (4, 4))
    >>> words, absent = torch.randn(3, 5, 16), torch.zeros(3, 5, dtype=torch.bool)
    >>> marks(torch.randn(3, 16, 16), words, absent).shape
    torch.Size([3, 16, 16])
    """

    place: Tensor
    computed = ("place",)

    def __init__(self, dim: int, heads: int, cells: tuple[int, int]) -> None:
        """Make the layers."""
        super().__init__()
        self.heads = heads
        self.words = nn.Linear(dim, heads)
        self.query = nn.Linear(dim, dim)
        self.norm, self.key = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.full((heads,), _CLOSED))
        self.marked = nn.Linear(heads, dim, bias=False)
        self.away = nn.Linear(heads * (2 + _WAVES), dim, bias=False)  # of 2 coordinates, their sines, their cosines
        nn.init.normal_(self.away.weight, std=(heads * (2 + _WAVES)) ** -0.5)
        with with_values():
            self.register_buffer("place", coordinates(*cells)[:, :2], persistent=False)

    def forward(
        self, x: Tensor, y: Tensor, absent: Tensor, rows: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """What is added to each cell, (B, L, D).

        `x`: cells, (P, L, D), of pictures; P is B without `rows`.
        `y`, `absent`: words (B, T, D), and where there is none, (B, T).
        `rows`: (B,), the picture of each question; default None, picture b for question b.
        `mask`: (P, L), cells that take part; default None, all.
        """
        keys = self.key(self.norm(x))
        if rows is not None:
            keys, mask = keys[rows], None if mask is None else mask[rows]
        scores = self._scores(keys, y, absent)
        attended = softmax(scores, mask=None if mask is None else mask.unsqueeze(1))
        gates = (scores + self.bias.unsqueeze(-1)).sigmoid()
        return self.relative(attended @ self.place.to(x)) + gates.mT @ self.marked.weight.mT

    def _scores(self, keys: Tensor, y: Tensor, absent: Tensor) -> Tensor:
        """Scores of the cells, (B, H, L)."""
        pooled = softmax(self.words(y).mT, mask=~absent.unsqueeze(1)) @ y
        scores: Tensor = self.query(pooled) @ keys.mT * (2 / math.sqrt(keys.shape[-1]))
        return scores

    def relative(self, places: Tensor) -> Tensor:
        """A linear map of what separates each cell from marks at `places` (B, H, 2): (B, L, D).

        Coordinates, and their sines and cosines, are never formed for all pairs: sin(u - v) and cos(u - v) are linear
        in sin u and cos u, so that a question has a small matrix for all cells.
        """
        weight = self.away.weight.unflatten(1, (self.heads, 2 + _WAVES))
        flat, sines, cosines = weight.split([2, _WAVES // 2, _WAVES // 2], -1)
        place, waves = self.place.to(places), torch.arange(FREQUENCIES).to(places).exp2().unsqueeze(-1) * (math.pi / 2)
        u, v = (place.unsqueeze(1) * waves).flatten(1), (places.unsqueeze(2) * waves).flatten(2)
        sin, cos = v.sin(), v.cos()

        def mapped(values: Tensor, by: Tensor) -> Tensor:  # (B, H, W) by (D, H, W): (B, W, D)
            return torch.einsum("bhw,dhw->bwd", values, by)

        of_sine, of_cosine = mapped(cos, sines) + mapped(sin, cosines), mapped(cos, cosines) - mapped(sin, sines)
        moved = place @ flat.sum(1).mT - mapped(places, flat).sum(1).unsqueeze(1)
        relative: Tensor = moved + torch.cat([u.sin(), u.cos()], -1) @ torch.cat([of_sine, of_cosine], 1)
        return relative


class Sums(nn.Module):
    """Sums over cells, each by a gate of its score: a mean cannot count.

    `dim`: the width of a cell's feature.
    `out`: that of the result.

    >>> Sums(16, 32)(torch.randn(3, 9), torch.randn(3, 9, 16)).shape
    torch.Size([3, 32])
    """

    def __init__(self, dim: int, out: int) -> None:
        """Make the layers."""
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(_CLOSED))
        self.value = nn.Linear(dim, _SUMMED)
        self.out = nn.Sequential(nn.Linear(_SUMMED, 2 * _SUMMED), nn.ReLU(), nn.Linear(2 * _SUMMED, out))

    def forward(self, scores: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (B, L) and features (B, L, D), of cells that take part by `mask` (B, L), to (B, out)."""
        gates = (scores + self.bias).sigmoid()
        if mask is not None:
            gates = gates.masked_fill(~mask, 0)
        summed: Tensor = self.out((gates.unsqueeze(-2) @ self.value(values)).squeeze(-2))
        return summed
