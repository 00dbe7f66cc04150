"""Where the values are: one object for moments, ridge regression and pictures.

Shapes: L locations, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard._torch import with_values

# Smallest variance of a location, relative to the squared extent of all points.
_LEAST = {torch.float32: 1e-7, torch.float64: 1e-14}

Placement = Literal["centre", "corner"]


@dataclass(frozen=True, eq=False, repr=False)
class Locations:
    """L points of R^d, and the size of the cell that each one stands for (5.2).

    `points` (L, d); `cell` (d,) holds the sides of a cell, zero for bare points; `shape` is the number of cells along
    each axis of the array of values, (height, width) for a grid and (length,) for a line, and None for scattered
    points. On a grid a point is (x, y), x to the right and y down, and cells are numbered row by row, as
    `values.flatten(1, 2)` of a (batch, height, width, channels) array does.

    Locations have no gradient. Bare points in [0, 1]^2, for example centres of detected boxes:

    >>> Locations(torch.tensor([[0.2, 0.3], [0.9, 0.5], [0.4, 0.4]])).points.shape
    torch.Size([3, 2])
    """

    points: Tensor
    cell: Tensor | None = None
    shape: tuple[int, ...] | None = None
    casts: dict[tuple[torch.dtype, torch.device], Locations] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the shapes; without cell sizes a location is a bare point."""
        _check.floating("points", self.points, min_dims=2)
        if self.points.dim() != 2 or 0 in self.points.shape:
            _check.complain("points", f"shape {tuple(self.points.shape)}", "(L, d), not empty", "One row per location.")
        _check.finite("points", self.points)
        if self.cell is None:
            object.__setattr__(self, "cell", self.points.new_zeros(self.dimensions))
        _check.nonnegative("cell", self.sides)
        if self.sides.shape != (self.dimensions,):
            _check.complain("cell", f"shape {tuple(self.sides.shape)}", f"({self.dimensions},)", "One side per axis.")

    def __repr__(self) -> str:
        return shown(self, {"points": self.points, "cell": self.cell, "shape": self.shape})

    def __len__(self) -> int:
        """How many locations there are."""
        return self.points.shape[0]

    @property
    def dimensions(self) -> int:
        """The dimension d of the space."""
        return self.points.shape[1]

    @property
    def sides(self) -> Tensor:
        """The sides of a cell, (d,)."""
        assert self.cell is not None
        return self.cell

    @property
    def within(self) -> Tensor:
        """The variance inside a cell, diag(side^2) / 12, (d, d): equation (5.2).

        A bare point gets a variance just above rounding error, so that one-hot weights on points do not make the
        covariance singular.
        """
        extent = (self.points.amax(0) - self.points.amin(0)).square()
        least = _LEAST[self.points.dtype] * torch.where(extent > 0, extent, 1)
        return torch.diag(torch.maximum(self.sides.square() / 12, least))

    def to(self, like: Tensor) -> Locations:
        """The same locations on the device and in the dtype of `like`, or in float32 when that is a half type."""
        dtype = working_dtype(like.dtype)
        if self.points.dtype == dtype and self.points.device == like.device:
            return self
        key = (dtype, like.device)
        if key in self.casts:
            return self.casts[key]
        cast = Locations(self.points.to(*key[::-1]), self.sides.to(*key[::-1]), self.shape)
        if not torch.compiler.is_compiling():  # a traced tensor has no values to cache
            self.casts[key] = cast
        return cast

    @property
    def middle(self) -> Tensor:
        """The middle of the box around the points, (d,)."""
        return (self.points.amax(0) + self.points.amin(0)) / 2

    def centred(self) -> Locations:
        """The same locations with the origin in their `middle`.

        >>> line(2).centred().points.flatten().tolist()
        [-0.25, 0.25]
        """
        return Locations(self.points - self.middle, self.sides, self.shape)

    def padded(self) -> tuple[Locations, Tensor]:
        """A box of twice the side around this one, and a mask (L',) that is True for the cells of this one.

        Each side gets half as many cells as there are along that axis, rounded up, at the same spacing.
        """
        if self.shape is None:
            _check.complain("padding", "scattered points", "a grid or a line", "Use padding=False, or grid(h, w).")
        margins = [(n + 1) // 2 for n in self.shape]
        steps = [torch.arange(-m, n + m, device=self.points.device) for n, m in zip(self.shape, margins, strict=True)]
        inside = [(s >= 0) & (s < n) for s, n in zip(steps, self.shape, strict=True)]
        real = torch.cartesian_prod(*inside).reshape(-1, len(steps)).all(-1)
        # An array axis counts rows before columns; a point gives x before y.
        index = torch.cartesian_prod(*steps).reshape(-1, len(steps)).flip(-1)
        return Locations(self.points[0] + index * self.sides, self.sides, tuple(map(len, steps))), real


def grid(height: int, width: int, *, at: Placement = "centre") -> Locations:
    """The height x width cells of the unit square.

    Each cell sits at its centre, ((i + 1/2) / width, (j + 1/2) / height), or `at="corner"`, at (i / width, j / height):
    the l / sqrt(L) of the thesis. Not differentiable.

    >>> cells = grid(2, 4)
    >>> len(cells), cells.points[0].tolist(), cells.sides.tolist()
    (8, [0.125, 0.25], [0.25, 0.5])
    """
    with with_values():
        return _cells((_check.count("height", height), _check.count("width", width)), at)


def line(length: int, *, at: Placement = "centre") -> Locations:
    """The unit interval cut into `length` cells: words of a sentence, frames of a sound.

    As `grid`, in one dimension.

    >>> line(4).points.flatten().tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    with with_values():
        return _cells((_check.count("length", length),), at)


def _cells(shape: tuple[int, ...], at: Placement) -> Locations:
    _check.choice("at", at, ("centre", "corner"))
    shift = 0.5 if at == "centre" else 0.0
    axes = [(torch.arange(n, dtype=torch.float64) + shift) / n for n in shape]
    points = torch.cartesian_prod(*axes).reshape(-1, len(shape)).flip(-1)
    sides = torch.tensor([1 / n for n in reversed(shape)], dtype=torch.float64)
    return Locations(points, sides, shape)


def as_locations(locations: Locations | Tensor) -> Locations:
    """The locations; an (L, d) tensor is taken as bare points."""
    if isinstance(locations, Locations):
        return locations
    _check.floating("locations", locations)
    return Locations(locations)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: half types are computed in float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
