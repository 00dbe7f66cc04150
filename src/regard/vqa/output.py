"""The output attention over the picture: one set of parameters, many ways to turn scores into a context.

Every kind scores the cells with the same small network and has the same output layer, so that a model trained with one
kind can be called with any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from regard import _check
from regard._repr import shown
from regard._torch import with_values
from regard.continuous import (
    Basis,
    Density,
    FourierBasis,
    GaussianBasis,
    Locations,
    ParaboloidBasis,
    Setting,
    grid,
    ridge,
    thesis,
)
from regard.continuous.attention import read_out
from regard.maps.entmax import softmax
from regard.vqa.kinds import BasisName, Discrete, FittedKind, Fitting, Kind, PlacementName, named_map, parse
from regard.vqa.marks import Sums


class Looked(NamedTuple):
    """Output of an output attention.

    context (B, out); weights (B, L), the discrete distribution over cells; effective (B, L), the factor of each cell's
    feature in the context (the weights for a discrete kind; may be negative for a continuous one); density, or None.
    """

    context: Tensor
    weights: Tensor
    effective: Tensor
    density: Density | None

    def __repr__(self) -> str:
        return shown(self, self._asdict())


class OutputAttention(nn.Module):
    """Pool the cells of a picture, (B, L, dim) to (B, out).

    `dim`: the width of a cell's feature.
    `cells`: (height, width) of the grid.
    `kind`: a name or a value of `regard.vqa.kinds`; default "discrete-softmax". A call may use another: all have the
        same parameters, and the module does not change.
    `basis`: of the value function of the continuous kinds: "gaussian" (default; seven functions per ten cells along an
        axis), "fourier" (as many cosines), "paraboloid" (as many truncated paraboloids: each is zero outside an ellipse
        of about three spacings, so that a sparse density reads only the functions that it overlaps), or the thesis' 49
        or 100 narrow Gaussians.
    `padding`: zeros around the picture in the regression on the basis; default None, with the thesis' bases alone.
    `ridge_penalty`: of that regression; default 0.01.
    `placement`: where a cell is on the unit square, at its "centre" (default) or its "corner", as in the thesis.
    `cell_variance`: add the variance inside a cell to that of the weights, default True; else 1e-6, as the authors of
        the thesis add.
    `fitting`: of mixtures; default `Fitting()`.
    `sums`: add sums over the cells (`regard.vqa.marks.Sums`), the same for all kinds, to the context; default False.
    `hidden`: the width of the hidden layer that scores cells; default `dim`.
    `out`: the width of the output; default None, no output layer.
    `dropout`: its probability in the score network; default 0.

    >>> pool = OutputAttention(16, (4, 4), "continuous-softmax", out=32)
    >>> looked = pool(torch.randn(3, 16, 16))
    >>> looked.context.shape, looked.weights.shape, looked.density.mean.shape
    (torch.Size([3, 32]), torch.Size([3, 16]), torch.Size([3, 2]))
    >>> pool(torch.randn(3, 16, 16), kind="discrete-sparsemax").density is None, str(pool.kind)
    (True, 'continuous-softmax')
    """

    def __init__(
        self,
        dim: int,
        cells: tuple[int, int],
        kind: str | Kind = "discrete-softmax",
        *,
        basis: BasisName = "gaussian",
        padding: bool | None = None,
        ridge_penalty: float = 0.01,
        placement: PlacementName = "centre",
        cell_variance: bool = True,
        fitting: Fitting | None = None,
        sums: bool = False,
        hidden: int | None = None,
        out: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Make the score network and the output layer."""
        super().__init__()
        _check.choice("basis", basis, get_args(BasisName))
        self.cells, self.basis, self.kind = cells, basis, parse(kind)
        self.padding, self.ridge_penalty = padding, _check.number("ridge_penalty", ridge_penalty, above=0)
        self.placement, self.cell_variance, self.fitting = placement, cell_variance, fitting or Fitting()
        self.pool = _Layers(dim, dim if hidden is None else hidden, out, dropout)
        self.sums = Sums(dim, dim if out is None else out) if sums else None
        if isinstance(self.kind, FittedKind):
            _ = self.regression  # computed now, not in the first step

    @cached_property
    def regression(self) -> _Regression:
        """The regression of the value function on the cells, for all continuous kinds; computed at first use."""
        # So that it can be trained with even if the first use is in inference mode, or the model is built on meta.
        with torch.inference_mode(False), with_values():
            where = grid(*self.cells, at=self.placement)
            setting = value_function(self.basis, self.cells, self.padding, self.ridge_penalty)
            return _Regression(where, setting, where if self.cell_variance else _points(where))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        kind: str | Kind | None = None,
        values: Tensor | None = None,
    ) -> Looked:
        """Features (B, L, dim) to context, weights, effective weights and density; `mask` (B, L), True takes part.

        `values` (B, L, dim) are read in place of the features that are scored; default those.
        `kind` is for this call alone; default the module's. A continuous kind fits its density to the cells that take
        part, and its value function to their features; the density has mass between and beside them too.
        """
        attention = self.kind if kind is None else parse(kind)
        s = self.pool.score(x).squeeze(-1)
        x = x if values is None else values
        summed = 0 if self.sums is None else self.sums(s, x, mask)
        if isinstance(attention, Discrete):
            row_mask = None if mask is None else mask.unsqueeze(-2)
            p = named_map(attention.map, self.cells)[1](s.unsqueeze(-2), mask=row_mask)
            weights = (p if isinstance(p, Tensor) else p.weights).squeeze(-2)
            context = (weights.to(x.dtype).unsqueeze(-2) @ x).squeeze(-2)
            return Looked(self.pool.merge(context) + summed, weights, weights, None)
        assert isinstance(attention, FittedKind)
        weights = softmax(s, mask=mask)
        with torch.autocast(x.device.type, enabled=False):  # densities and their expectations need float32
            density = attention.fit(
                weights, self.regression.fitted_on, mask, training=self.training, fitting=self.fitting
            )
            operator = self.regression.operator(x.device, mask)
            context, _, effective = read_out(x, density, self.regression.setting.basis, operator, mask)
        return Looked(self.pool.merge(context) + summed, weights.detach(), effective.to(x.dtype), density)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "regression"}  # it can be computed again

    def extra_repr(self) -> str:
        """The kind, and the cells."""
        return f"{self.kind}, {self.cells[0]} x {self.cells[1]} cells"


class _Regression:
    """The locations of the cells, a basis, and the constant ridge operator of both, per device.

    fitted_on: the locations that densities are fitted to.
    """

    def __init__(self, where: Locations, setting: Setting, fitted_on: Locations) -> None:
        self.where, self.setting, self.fitted_on = where, setting, fitted_on
        self.operators = {where.points.device: self._solve(where, None)}

    def operator(self, device: torch.device, mask: Tensor | None) -> Tensor:
        """The ridge operator (L, N) in float64; with a mask one per example, (B, L, N), zero for masked cells."""
        if mask is not None:
            on_device = self.where.to(torch.empty(0, dtype=torch.float64, device=device))
            return self._solve(on_device, mask).masked_fill(~mask.unsqueeze(-1), 0)
        if device not in self.operators:
            with torch.inference_mode(False):
                self.operators[device] = next(iter(self.operators.values())).to(device)
        return self.operators[device]

    def _solve(self, where: Locations, mask: Tensor | None) -> Tensor:
        return ridge(where, self.setting.basis, self.setting.penalty, self.setting.padding, mask)


class _Layers(nn.Module):
    """What all kinds share: the network that scores a cell, and the output layer."""

    def __init__(self, dim: int, hidden: int, out: int | None, dropout: float) -> None:
        super().__init__()
        hidden, rate = _check.count("hidden", hidden), _check.share("dropout", dropout)
        self.score = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(rate), nn.Linear(hidden, 1))
        self.merge = nn.Identity() if out is None else nn.Linear(dim, _check.count("out", out))


def value_function(
    name: BasisName, cells: tuple[int, int], padding: bool | None = None, penalty: float = 0.01
) -> Setting:
    """The basis with a name, and the penalty and padding of its ridge regression; arguments as in `OutputAttention`.

    >>> value_function("thesis-49", (14, 14)).options, len(value_function("thesis-49", (14, 14)).basis)
    ({'penalty': 0.01, 'padding': True}, 49)
    """
    if name in ("thesis-49", "thesis-100"):
        side = {"thesis-49": 7, "thesis-100": 10}[name]
        printed = thesis(side, side)
        return Setting(printed.basis, penalty, printed.padding if padding is None else padding)
    height, width = (max(1, round(0.7 * n)) for n in cells)
    bases: dict[str, Callable[[int, int], Basis]] = {
        "gaussian": GaussianBasis.on_grid,
        "fourier": FourierBasis.on_grid,
        "paraboloid": ParaboloidBasis.on_grid,
    }
    return Setting(bases[name](height, width), penalty, bool(padding))


def _points(where: Locations) -> Locations:
    """The same places with a variance of 1e-6 along each axis in place of that inside a cell."""
    return Locations(where.points, torch.full_like(where.sides, math.sqrt(12e-6)), where.shape)
