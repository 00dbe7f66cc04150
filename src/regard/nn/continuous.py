"""Modules of continuous attention: pooling a grid or sequence, and self-attention on a continuous signal.

Legend: B or (...) batch, L locations, N basis functions, D width, H heads, E width of a head, d dimensions.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from regard import _check
from regard._torch import with_values, without_autocast
from regard.continuous import (
    Attended,
    Basis,
    Density,
    GaussianBasis,
    Locations,
    MatchMoments,
    from_cholesky,
    grid,
    line,
    read_out,
    ridge,
)
from regard.continuous.fits import Fit, as_fit
from regard.continuous.ridge import PENALTY
from regard.hub import PretrainedModule
from regard.hub.card import Card
from regard.maps.entmax import softmax
from regard.nn._cards import pool_card
from regard.nn._computed import ComputedBuffers
from regard.nn._spelled import read_basis, read_fit, read_locations, spell_basis, spell_fit, spell_locations


class _OnLocations(ComputedBuffers, PretrainedModule):
    """Locations, a basis on them, and the ridge operator that belongs to both."""

    operator: Tensor
    dim: int
    computed = ("operator", "home", "height")

    def __init__(
        self, where: Locations | int | tuple[int, int], basis: Basis | None, penalty: float, padding: bool
    ) -> None:
        super().__init__()
        if not isinstance(where, Locations):
            where = line(where) if isinstance(where, int) else grid(*where)
        self.where, self.basis = where, basis or basis_for(where)
        self.penalty, self.padding = penalty, padding
        with with_values():
            # Not saved with the parameters: it can be computed again.
            self.register_buffer("operator", ridge(where, self.basis, penalty, padding), persistent=False)

    def _operator(self, mask: Tensor | None) -> Tensor:
        """(L, N); with a mask one per example, (..., L, N), with zeros where a location does not take part."""
        if mask is None:
            return self.operator
        operator = ridge(self.where, self.basis, self.penalty, self.padding, mask)
        return operator.masked_fill(~mask.unsqueeze(-1), 0)

    def _check_input(self, x: Tensor, dim: int, mask: Tensor | None) -> None:
        _check.floating("x", x, min_dims=2)
        if x.shape[-2:] != (len(self.where), dim):
            expected = f"(..., {len(self.where)}, {dim}): locations, then features"
            remedy = "A map (B, C, height, width) becomes x.flatten(2).mT."
            _check.complain("x", f"shape {tuple(x.shape)}", expected, remedy)
        if mask is not None:
            _check.boolean_mask(mask, x.shape[:-1], "x without its last axis")

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The model card (README.md) of this module; `name` is the folder or repository that it is loaded from."""
        return pool_card(self, name, f"torch.randn(1, {len(self.where)}, {self.dim})", license)

    def _hub_settings(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "where": spell_locations(self.where),
            "basis": spell_basis(self.basis),
            "penalty": self.penalty,
            "padding": self.padding,
        }

    @staticmethod
    def _places(settings: dict[str, Any]) -> dict[str, Any]:
        """The arguments that all modules on locations take."""
        parts = {"where": read_locations(settings["where"]), "basis": read_basis(settings["basis"])}
        return {name: settings[name] for name in ("dim", "penalty", "padding")} | parts

    def extra_repr(self) -> str:
        """What the children do not show."""
        cells = " x ".join(map(str, self.where.shape or (len(self.where),)))
        return f"{cells} locations, {len(self.basis)} functions of {type(self.basis).__name__}"


class ContinuousAttentionPool(_OnLocations):
    """Pool features at locations under a density: scores from an MLP, weights, a density, its expectation (7.4).

    `dim`: width of the features.
    `where`: (height, width) of a grid, the length of a sequence, or `Locations`.
    `basis`: Gaussian, paraboloid or Fourier; default Gaussian bumps, seven for ten cells along an axis.
    `fit`: how weights become a density; `MatchMoments(alpha=2)`, `FitMixture(2)`, the same with `mixing="sparsemax"`, a
    partial of their functions, a name, or any callable like `regard.continuous.Fit`; default `MatchMoments()`.
    `fit_test`: replaces `fit` in evaluation mode, for example `SelectMixture()`, which chooses how many components;
    default None, the same fit.
    `hidden`: units of the scoring network (Linear, ReLU, dropout, Linear); default `dim`.
    `out`: the context goes through one more Linear to this width; default None, it does not.
    `dropout`: share of hidden units set to zero in training; default 0.
    `penalty`, `padding`: as in `regard.continuous.ridge`.

    Returns `Attended(context, density, weights)` with the *effective* weights, what each location contributed: context
    is weights @ x. `mask` (..., L), True = takes part; a row where nothing does has a context of zero (or the bias of
    `out`). Differentiable in features and parameters. torch.export takes tensors alone: export a module that returns
    the context.

    >>> pool = ContinuousAttentionPool(16, (14, 14))
    >>> context, density, weights = pool(torch.randn(3, 196, 16))
    >>> context.shape, density.mean.shape, weights.shape
    (torch.Size([3, 16]), torch.Size([3, 2]), torch.Size([3, 196]))
    """

    kind: ClassVar[str] = "continuous-attention-pool"

    def __init__(
        self,
        dim: int,
        where: Locations | int | tuple[int, int],
        basis: Basis | None = None,
        fit: Fit | str = MatchMoments(),  # noqa: B008  (immutable)
        fit_test: Fit | str | None = None,
        *,
        hidden: int | None = None,
        out: int | None = None,
        dropout: float = 0.0,
        penalty: float = PENALTY,
        padding: bool = False,
    ) -> None:
        """Create the layers and solve the ridge regression."""
        super().__init__(where, basis, penalty, padding)
        self.dim = _check.count("dim", dim)
        hidden = dim if hidden is None else _check.count("hidden", hidden)
        self.fit: Fit = as_fit(fit)
        self.fit_test: Fit | None = None if fit_test is None else as_fit(fit_test)
        self.score = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1))
        self.merge = nn.Identity() if out is None else nn.Linear(dim, _check.count("out", out))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Attended:
        """Features (..., L, dim) to context (..., dim), density (...) and effective weights (..., L)."""
        self._check_input(x, self.dim, mask)
        if mask is not None:
            mask = mask.expand(x.shape[:-1])
        p = softmax(self.score(x).squeeze(-1), mask=mask)
        fit = self.fit if self.training or self.fit_test is None else self.fit_test
        # Densities and their expectations need float32.
        with without_autocast(x):
            density = fit(p, self.where, mask=mask)
            context, _, weights = read_out(x, density, self.basis, self._operator(mask), mask)
        return Attended(self.merge(context), density, weights.to(x.dtype))

    def _hub_settings(self) -> dict[str, Any]:
        return super()._hub_settings() | {
            "fit": spell_fit(self.fit),
            "fit_test": spell_fit(self.fit_test),
            "hidden": self.score[0].out_features,
            "out": getattr(self.merge, "out_features", None),
            "dropout": self.score[2].p,
        }

    @classmethod
    def _from_hub_settings(cls, settings: dict[str, Any]) -> Self:
        network = {name: settings[name] for name in ("hidden", "out", "dropout")}
        fits: dict[str, Any] = {name: read_fit(settings[name]) for name in ("fit", "fit_test")}
        return cls(**cls._places(settings), **network, **fits)


class ContinuousSelfAttention(_OnLocations):
    """Self-attention on a continuous key-value signal: O(L N) time and memory instead of O(L^2) (7.5 to 7.7).

    Keys and values at L locations become functions with N coefficients each, by ridge regression, once. The products of
    a query with the coefficients of the keys give the mean and the Cholesky factor of a density; the context is the
    expectation of the value function. At initialisation the density of every query is centred at its own location, with
    a width from one cell (first head) to half the box (last head).

    `dim`: width of the features.
    `heads`: a divisor of it.
    `where`: as in `ContinuousAttentionPool`; locations in the unit box, in one or two dimensions.
    `basis`: as in `ContinuousAttentionPool`.
    `alpha`: family of the densities, 1 (Gaussian), 2 (paraboloid) or any number between 1 and 3; default 1.
    `penalty`, `padding`: as in `regard.continuous.ridge`.

    `mask` (B, L), True = takes part: masked locations are no keys. Differentiable in features and parameters.

    >>> attention = ContinuousSelfAttention(16, 4, (14, 14))
    >>> attention(torch.randn(3, 196, 16)).shape
    torch.Size([3, 196, 16])
    """

    home: Tensor
    height: Tensor
    kind: ClassVar[str] = "continuous-self-attention"

    def __init__(
        self,
        dim: int,
        heads: int,
        where: Locations | int | tuple[int, int],
        basis: Basis | None = None,
        *,
        alpha: float = 1,
        penalty: float = PENALTY,
        padding: bool = False,
    ) -> None:
        """Create the layers and solve the ridge regression."""
        super().__init__(where, basis, penalty, padding)
        self.dim, self.heads, self.alpha = _check.count("dim", dim), _check.count("heads", heads), alpha
        if dim % heads:
            _check.complain("heads", heads, f"a divisor of dim, {dim}", "Heads share the width.")
        d, points = self.where.dimensions, self.where.points
        if bool((points < 0).any() or (points > 1).any()):
            _check.complain("where", "points outside the unit box", "points in [0, 1]", "Divide by the extent.")
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        rows, columns = torch.tril_indices(d, d).unbind()
        narrowest, widest = float(self.where.within.diagonal().min().sqrt()), 0.5
        widths = narrowest * (widest / narrowest) ** (torch.arange(heads) / max(heads - 1, 1))
        factor = torch.where(rows == columns, widths.unsqueeze(-1), torch.zeros(()))
        self.shape_weight = nn.Parameter(torch.zeros(heads, len(self.basis), d + len(rows)))
        self.shape_bias = nn.Parameter(torch.cat([torch.zeros(heads, d), factor], -1))
        self.floor = narrowest**2
        # The mean of a query's density at initialisation: the logit of its own location, clamped away from the border.
        with with_values():
            self.register_buffer("home", points.double().clamp(0.01, 0.99).logit(), persistent=False)
            # Functions differ in height by orders of magnitude; their root mean square makes coefficients comparable.
            height = self.basis(points.double()).square().mean(0).sqrt()
            self.register_buffer("height", height, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features (B, L, dim) to contexts (B, L, dim)."""
        q, k, v, dtype = self._projected(x, mask)
        with without_autocast(x):
            r = self._density(q, k).expect(self.basis)
            c = (r @ v).to(dtype)
        out: Tensor = self.out(c.transpose(1, 2).flatten(2))
        return out

    def densities(self, x: Tensor, mask: Tensor | None = None) -> Density:
        """The density of every query, batch shape (B, H, L): for pictures."""
        q, k, _, _ = self._projected(x, mask)
        with without_autocast(x):
            return self._density(q, k)

    def extra_repr(self) -> str:
        """What the children do not show."""
        return f"{self.dim}, heads={self.heads}, alpha={self.alpha}, {super().extra_repr()}"

    def _hub_settings(self) -> dict[str, Any]:
        return super()._hub_settings() | {"heads": self.heads, "alpha": self.alpha}

    @classmethod
    def _from_hub_settings(cls, settings: dict[str, Any]) -> Self:
        return cls(**cls._places(settings), heads=settings["heads"], alpha=settings["alpha"])

    def _projected(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
        """Queries (B, H, L, E), coefficients of the key and value functions (B, H, N, E), and the output's dtype."""
        self._check_input(x, self.dim, mask)
        if x.dim() != 3:
            _check.complain("x", f"shape {tuple(x.shape)}", "(B, L, dim)", "Add or flatten batch axes.")
        projected = self.query_key_value(x)
        working = torch.float64 if projected.dtype == torch.float64 else torch.float32
        q, k, v = projected.to(working).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        operator = self._operator(mask).to(working)
        operator = operator if mask is None else operator.expand(*x.shape[:-1], -1).unsqueeze(1)
        with without_autocast(x):
            return q, operator.mT @ k, operator.mT @ v, projected.dtype

    def _density(self, q: Tensor, k: Tensor) -> Density:
        d = self.where.dimensions
        s = q @ (k * self.height.to(k).unsqueeze(-1)).mT / math.sqrt(q.shape[-1])
        shape = s @ self.shape_weight.to(s) + self.shape_bias.to(s).unsqueeze(-2)
        mean = (self.home.to(s) + shape[..., :d]).sigmoid()
        rows, columns = torch.tril_indices(d, d, device=s.device).unbind()
        factor = s.new_zeros(*s.shape[:-1], d, d)
        factor[..., rows, columns] = shape[..., d:]
        return from_cholesky(mean, factor, self.alpha, self.floor)


def basis_for(where: Locations) -> Basis:
    """Gaussian bumps, seven along an axis for ten cells."""
    if where.shape is None:
        _check.complain("basis", "None", "a basis, as the locations are no grid", "GaussianBasis.on_grid(10, 10).")
    shape = [max(1, round(0.7 * n)) for n in where.shape]
    return GaussianBasis.on_line(*shape) if len(shape) == 1 else GaussianBasis.on_grid(*shape)
