"""The output attention over the picture: one set of parameters, many ways to turn scores into a context.

Every kind scores the cells with the same small network and reads out through the same last layer; so a model that was
trained with one kind looks with any other, which is an argument of the call.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard import _check
from regard._repr import shown
from regard.continuous import (
    Density,
    FourierBasis,
    GaussianBasis,
    Locations,
    Setting,
    grid,
    ridge,
    thesis,
)
from regard.continuous.attention import read_out
from regard.maps.entmax import softmax
from regard.vqa.kinds import Discrete, FittedKind, Kind, named_map, parse

BasisName = Literal["gaussian", "fourier", "thesis-49", "thesis-100"]


class Looked(NamedTuple):
    """What an output attention gives.

    context (B, out); weights (B, L), the discrete distribution over cells; effective (B, L), what each cell really
    contributed (the same as weights for a discrete kind; may be negative for a continuous one); density, or None.
    """

    context: Tensor
    weights: Tensor
    effective: Tensor
    density: Density | None

    def __repr__(self) -> str:
        return shown(self, self._asdict())


class OutputAttention(nn.Module):
    """Pool the cells of a picture, (B, L, dim) to (B, out), by a `kind` of `regard.vqa.kinds`, a name or a value.

    `cells` is (height, width). `basis` is that of the value function of the continuous kinds: "gaussian" bumps seven
    for ten cells along an axis, "fourier" cosines, or the thesis' 49 or 100 narrow Gaussians with padding.
    A call may name another kind: it has the same parameters, and nothing in the module changes.

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
        hidden: int | None = None,
        out: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Make the score network and the last layer."""
        super().__init__()
        _check.choice("basis", basis, ("gaussian", "fourier", "thesis-49", "thesis-100"))
        self.cells, self.basis, self.kind = cells, basis, parse(kind)
        self.pool = _Layers(dim, dim if hidden is None else hidden, out, dropout)
        if isinstance(self.kind, FittedKind):
            _ = self.regression  # made here, and not in the first step

    @cached_property
    def regression(self) -> _Regression:
        """From features on the cells to a value function: the same for all kinds, made when one needs it."""
        with torch.inference_mode(False):  # it may be trained with, whoever looks first
            return _Regression(grid(*self.cells), _setting(self.basis, self.cells))

    def forward(self, x: Tensor, mask: Tensor | None = None, kind: str | Kind | None = None) -> Looked:
        """Features (B, L, dim) to context, weights, effective weights and density; `mask` (B, L), True takes part.

        `kind` is for this call alone, by default the module's own. A continuous kind fits its density to the cells that
        take part, and its value function to their features at their places: the density has mass between and beside
        them, as it has between cells.
        """
        look = self.kind if kind is None else parse(kind)
        s = self.pool.score(x).squeeze(-1)
        if isinstance(look, Discrete):
            p = named_map(look.map, self.cells)[1](s.unsqueeze(-2), mask=None if mask is None else mask.unsqueeze(-2))
            weights = (p if isinstance(p, Tensor) else p.weights).squeeze(-2)
            context = (weights.to(x.dtype).unsqueeze(-2) @ x).squeeze(-2)
            return Looked(self.pool.merge(context), weights, weights, None)
        assert isinstance(look, FittedKind)
        weights = softmax(s, mask=mask)
        with torch.autocast(x.device.type, enabled=False):  # densities and their expectations need float32
            density = look.fit(weights, self.regression.where, mask, training=self.training)
            operator = self.regression.operator(x.device, mask)
            context, _, effective = read_out(x, density, self.regression.setting.basis, operator, mask)
        return Looked(self.pool.merge(context), weights.detach(), effective.to(x.dtype), density)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "regression"}  # it can be made again

    def extra_repr(self) -> str:
        """The kind, and the cells."""
        return f"{self.kind}, {self.cells[0]} x {self.cells[1]} cells"


class _Regression:
    """Where the cells are, a basis on them, and the ridge operator that belongs to both: numbers that never change."""

    def __init__(self, where: Locations, setting: Setting) -> None:
        self.where, self.setting = where, setting
        self.operators = {where.points.device: self._solve(where, None)}

    def operator(self, device: torch.device, mask: Tensor | None) -> Tensor:
        """(L, N) in float64; with a mask one for each example, (B, L, N), zero where a cell does not take part."""
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
    """What all kinds share: the network that scores a cell, and the layer that the context goes through."""

    def __init__(self, dim: int, hidden: int, out: int | None, dropout: float) -> None:
        super().__init__()
        hidden, rate = _check.count("hidden", hidden), _check.share("dropout", dropout)
        self.score = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(rate), nn.Linear(hidden, 1))
        self.merge = nn.Identity() if out is None else nn.Linear(dim, _check.count("out", out))


def _setting(name: BasisName, cells: tuple[int, int]) -> Setting:
    if name == "thesis-49":
        return thesis(7, 7)
    if name == "thesis-100":
        return thesis(10, 10)
    height, width = (max(1, round(0.7 * n)) for n in cells)
    make = GaussianBasis.on_grid if name == "gaussian" else FourierBasis.on_grid
    return Setting(make(height, width), 0.01, False)
