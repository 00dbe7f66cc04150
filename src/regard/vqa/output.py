"""The output attention over the picture: one set of parameters, many ways to turn scores into a context.

Every kind scores the cells with the same small network and reads out through the same last layer; so a model that was
trained with one kind can be evaluated with any other.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard import _check
from regard.continuous import (
    Density,
    FourierBasis,
    GaussianBasis,
    Locations,
    Mixture,
    Setting,
    fit_mixture,
    grid,
    match_moments,
    select_mixture,
    thesis,
)
from regard.continuous.fit import Mixing
from regard.maps.simplex import entmax, softmax, sparsemax
from regard.maps.structured import tvmax
from regard.nn import AttentionPool, ContinuousAttentionPool

BasisName = Literal["gaussian", "fourier", "thesis-49", "thesis-100"]
ATTENTIONS = (
    "discrete-softmax",
    "discrete-sparsemax",
    "discrete-entmax",
    "discrete-tvmax",
    "continuous-softmax",
    "continuous-sparsemax",
    "mixture-2",
    "mixture-4",
    "mixture-4-sparse",
    "mixture-selected",
)
_DISCRETE = {"softmax": softmax, "sparsemax": sparsemax, "entmax": partial(entmax, alpha=1.5)}
_CONTINUOUS = {"softmax": 1, "sparsemax": 2}
_MIXTURE = re.compile(r"mixture-([1-9]\d?)(-sparse)?")
_SELECTED = re.compile(r"mixture-selected(?:-(\d+(?:\.\d+)?))?")


class Looked(NamedTuple):
    """What an output attention gives.

    context (B, out); weights (B, L), the discrete distribution over cells; effective (B, L), what each cell really
    contributed (the same as weights for a discrete kind; may be negative for a continuous one); density, or None.
    """

    context: Tensor
    weights: Tensor
    effective: Tensor
    density: Density | None


def check_attention(kind: str) -> str:
    """`kind`, if it names an output attention.

    Names: "discrete-" with softmax, sparsemax, entmax (alpha 1.5) or tvmax; "continuous-softmax" (a Gaussian) or
    "continuous-sparsemax" (a truncated paraboloid); "mixture-K" with K Gaussians fitted by EM from regions, with
    "-sparse" if weak ones are to be dropped; "mixture-selected" or "mixture-selected-0.5", with the number of
    components chosen for each example at test time, at that price per component (0.1 unless given).

    >>> check_attention("mixture-4-sparse")
    'mixture-4-sparse'
    """
    family, _, name = kind.partition("-")
    known = (
        (family == "discrete" and name in (*_DISCRETE, "tvmax"))
        or (family == "continuous" and name in _CONTINUOUS)
        or _MIXTURE.fullmatch(kind)
        or _SELECTED.fullmatch(kind)
    )
    if not known:
        _check.complain("attention", repr(kind), "one of " + ", ".join(ATTENTIONS), "Mixtures take any number.")
    return kind


class OutputAttention(nn.Module):
    """Pool the cells of a picture, (B, L, dim) to (B, out), by the `kind` of attention that `check_attention` lists.

    `cells` is (height, width). `basis` is that of the value function of the continuous kinds: "gaussian" bumps seven
    for ten cells along an axis, "fourier" cosines, or the thesis' 49 or 100 narrow Gaussians with padding.
    `switch(kind)` changes the kind and keeps the parameters.

    >>> pool = OutputAttention(16, (4, 4), "continuous-softmax", out=32)
    >>> looked = pool(torch.randn(3, 16, 16))
    >>> looked.context.shape, looked.weights.shape, looked.density.mean.shape
    (torch.Size([3, 32]), torch.Size([3, 16]), torch.Size([3, 2]))
    >>> pool.switch("discrete-sparsemax")(torch.randn(3, 16, 16)).density is None
    True
    """

    pool: AttentionPool | ContinuousAttentionPool

    def __init__(
        self,
        dim: int,
        cells: tuple[int, int],
        kind: str = "discrete-softmax",
        *,
        basis: BasisName = "gaussian",
        hidden: int | None = None,
        out: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Make the score network and the last layer."""
        super().__init__()
        self.cells, self.basis = cells, basis
        self.options: dict[str, Any] = {"dim": dim, "hidden": hidden, "out": out, "dropout": dropout}
        self.kind = check_attention(kind)
        self.pool = self._pool(kind)

    def switch(self, kind: str) -> OutputAttention:
        """Attend in another way from now on, with the same parameters; returns itself."""
        made = self._pool(check_attention(kind))
        made.score, made.merge = self.pool.score, self.pool.merge
        made.train(self.training)
        self.kind, self.pool = kind, made
        return self

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Looked:
        """Features (B, L, dim) to context, weights, effective weights and density; `mask` (B, L), True takes part.

        A continuous kind fits its density to the cells that take part, and its value function to their features at
        their places: the density has mass between and beside them, as it has between cells.
        """
        if isinstance(self.pool, AttentionPool):
            context, weights = self.pool(x, mask)
            weights = weights.squeeze(-2)
            return Looked(context, weights, weights, None)
        # What the density is fitted to, once more for pictures, outside the graph.
        with torch.no_grad():
            if self.training:
                weights = x.new_zeros(x.shape[:-1])
            else:
                weights = softmax(self.pool.score(x).squeeze(-1), mask=mask)
        context, density, effective = self.pool(x, mask)
        return Looked(context, weights, effective, density)

    def _pool(self, kind: str) -> AttentionPool | ContinuousAttentionPool:
        family, _, name = kind.partition("-")
        if family == "discrete":
            how: Any = _DISCRETE.get(name) or partial(tvmax, gamma=0.1, shape=self.cells)
            return AttentionPool(**self.options, map=how)
        where = grid(*self.cells)
        fit: Any = partial(match_moments, alpha=_CONTINUOUS.get(name, 1))
        test: Any = None
        if fixed := _MIXTURE.fullmatch(kind):
            mixing: Mixing = "sparsemax" if fixed[2] else "em"
            fit = partial(fit_mixture, components=int(fixed[1]), mixing=mixing)
        elif chosen := _SELECTED.fullmatch(kind):
            test = partial(_selected, penalty=float(chosen[1] or 0.1))
        setting = _setting(self.basis, self.cells)
        ridge: dict[str, Any] = dict(setting.options)
        return ContinuousAttentionPool(
            where=where, basis=setting.basis, fit=fit, fit_test=test, **ridge, **self.options
        )


def _selected(weights: Tensor, locations: Locations, *, mask: Tensor | None, penalty: float) -> Mixture:
    """Choose the number of components, with the same random starts each time."""
    starts = torch.Generator(weights.device).manual_seed(0)
    return select_mixture(weights, locations, penalty=penalty, mask=mask, generator=starts)


def _setting(name: BasisName, cells: tuple[int, int]) -> Setting:
    _check.choice("basis", name, ("gaussian", "fourier", "thesis-49", "thesis-100"))
    if name == "thesis-49":
        return thesis(7, 7)
    if name == "thesis-100":
        return thesis(10, 10)
    height, width = (max(1, round(0.7 * n)) for n in cells)
    make = GaussianBasis.on_grid if name == "gaussian" else FourierBasis.on_grid
    return Setting(make(height, width), 0.01, False)
