"""From values at locations to a value function on the whole space: V(t) = H G psi(t).

Legend: L locations, L' locations with the padding, N basis functions, D channels, (...) batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard import _check
from regard.continuous.basis import Basis
from regard.continuous.fourier import FourierBasis
from regard.continuous.locations import Locations, as_locations
from regard.continuous.radial import GaussianBasis, RadialBasis

PENALTY = 0.01


def ridge(
    locations: Locations | Tensor,
    basis: Basis,
    penalty: float = PENALTY,
    padding: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """The operator G (L, N) of multivariate ridge regression, B = H G: equation (5.20), Algorithm 1.

    G = F' (F F' + penalty I)^-1 with F (N, L) the basis at the locations. Do not multiply H by it: the context is c = H
    (G r).

    `locations`: where the values are, L of them; an (L, d) tensor is taken as bare points.
    `basis`: N functions.
    `penalty`: weight of the squared coefficients; default 0.01; 0 gives the pseudo-inverse.
    `padding`: surround a grid or line by cells with the value zero, to a box of twice the side; G has the rows of the
    real cells; default False.
    `mask`: boolean (..., L), True = takes part: one operator per example, (..., L, N), from its unmasked locations;
    default None.

    Solved in float64 by Cholesky (over N or over L, whichever is smaller; cosines on their own grid need no solve), and
    returned in float64, without gradient. Without a mask the operator is cached on the basis for as long as the
    `Locations` object lives: create it once.

    >>> from regard.continuous import GaussianBasis, grid
    >>> ridge(grid(14, 14), GaussianBasis.on_grid(10, 10)).shape
    torch.Size([196, 100])
    """
    where = as_locations(locations)
    _check.number("penalty", penalty, at_least=0)
    if basis.dimensions != where.dimensions:
        _check.complain(
            "basis", f"{basis.dimensions} dimensions", f"{where.dimensions}, as locations", "Use one space."
        )
    if mask is not None:
        _check.boolean_mask(mask, torch.Size((*mask.shape[:-1], len(where))), "locations")
        return _solve(where, basis, penalty, padding, mask)
    cache = basis.operators.setdefault(where, {})
    key = (penalty, padding)
    if key not in cache:
        cache[key] = _solve(where, basis, penalty, padding, None)
    return cache[key]


def _solve(where: Locations, basis: Basis, penalty: float, padding: bool, mask: Tensor | None) -> Tensor:
    box, real = where.padded() if padding else (where, None)
    psi = basis(box.points.double())
    if mask is not None:
        box_mask = mask
        if real is not None:
            box_mask = torch.ones(*mask.shape[:-1], len(box), dtype=torch.bool, device=mask.device)
            box_mask[..., real] = mask
        psi = psi * box_mask.unsqueeze(-1)
    if mask is None and not padding and _orthogonal(where, basis):
        return psi / (len(where) + penalty)
    locations, functions = psi.shape[-2:]
    if penalty == 0:
        operator: Tensor = torch.linalg.pinv(psi).mT
    elif functions <= locations:
        gram = psi.mT @ psi + penalty * torch.eye(functions).to(psi)
        operator = torch.cholesky_solve(psi.mT, torch.linalg.cholesky(gram)).mT
    else:
        gram = psi @ psi.mT + penalty * torch.eye(locations).to(psi)
        operator = torch.cholesky_solve(psi, torch.linalg.cholesky(gram))
    return operator if real is None else operator[..., real, :]


def _orthogonal(where: Locations, basis: Basis) -> bool:
    """Whether these are cosines on the centres of a grid with more cells than frequencies: then F F' = L I."""
    if not isinstance(basis, FourierBasis) or where.shape is None:
        return False
    cells = torch.tensor(where.shape[::-1], device=basis.numbers.device)
    numbers = basis.numbers
    whole = bool((numbers == numbers.round()).all() and (numbers >= 0).all() and (numbers < cells).all())
    at_centres = bool(torch.allclose(where.points[0].double(), where.sides.double() / 2))
    return whole and at_centres and len(set(map(tuple, numbers.tolist()))) == len(numbers)


def _finer(where: Locations) -> Tensor:
    """Four points along each axis for each cell, (4^d L, d)."""
    steps = (torch.arange(4, dtype=torch.float64, device=where.points.device) - 1.5) / 4
    shift = torch.cartesian_prod(*[steps] * where.dimensions).reshape(-1, where.dimensions) * where.sides.double()
    return (where.points.double().unsqueeze(1) + shift).flatten(0, 1)


@dataclass(frozen=True)
class Setting:
    """A basis with the ridge settings that belong to it: pass them on as `**setting.options`.

    >>> thesis().options
    {'penalty': 0.01, 'padding': True}
    """

    basis: Basis
    penalty: float
    padding: bool

    @property
    def options(self) -> dict[str, float | bool]:
        """The keyword arguments of `ridge` and `continuous_attention`."""
        return {"penalty": self.penalty, "padding": self.padding}


def thesis(height: int = 10, width: int = 10) -> Setting:
    """The setting of the thesis: Gaussians of variance 0.001 on a grid up to the borders, penalty 0.01, padding.

    For comparison only. Its bumps are so narrow that a constant image of 1 is reconstructed with values between 0.2 and
    2.7; see `diagnose`.

    >>> thesis().options
    {'penalty': 0.01, 'padding': True}
    """
    return Setting(GaussianBasis.on_grid(height, width, variance=1e-3), 0.01, True)


@dataclass(frozen=True)
class Diagnosis:
    """How well a basis reconstructs a signal: R^2 (5.21), the range of a reconstructed constant 1, a better variance.

    >>> from regard.continuous import grid
    >>> diagnose(grid(14, 14), thesis().basis, **thesis().options).suggested_variance > 0.001
    True
    """

    r2: float
    constant: tuple[float, float]
    suggested_variance: float | None


def diagnose(
    locations: Locations | Tensor,
    basis: Basis,
    penalty: float = PENALTY,
    padding: bool = False,
    values: Tensor | None = None,
) -> Diagnosis:
    """Reconstruct values at their own locations through the basis, H G F, and compare: equation (5.21).

    `locations`, `basis`: as in `ridge`.
    `penalty`, `padding`: as in `ridge`.
    `values`: features (..., L, D); default signals that vary slowly over the unit box, a constant and cosines with up
    to two half waves along each axis.

    R^2 is one minus the residual over the sum of squares about zero. For a radial basis with one shared covariance, an
    isotropic variance with (nearly) the highest R^2 is suggested. Not differentiable.

    >>> from regard.continuous import GaussianBasis, grid
    >>> cells = grid(14, 14)
    >>> narrow = diagnose(cells, GaussianBasis.on_grid(10, 10, variance=1e-3), padding=True)
    >>> good = diagnose(cells, GaussianBasis.on_grid(10, 10, narrow.suggested_variance))
    >>> bool(narrow.r2 < 0.9), bool(good.r2 > 0.999)
    (True, True)
    """
    where = as_locations(locations)
    points = where.points.double()
    if values is None:
        numbers = torch.cartesian_prod(*[torch.arange(3.0)] * where.dimensions).reshape(-1, where.dimensions)
        signal = FourierBasis(numbers)(points)
    else:
        _check.floating("values", values, min_dims=2)
        _check.finite("values", values)
        signal = (
            values.detach().double().flatten(0, -3).movedim(0, 1).flatten(1) if values.dim() > 2 else values.double()
        )
        _check.last_axis("values", signal.mT, len(where), "locations")

    def score(candidate: Basis) -> tuple[float, Tensor]:
        operator = _solve(where, candidate, penalty, padding, None)
        residual = candidate(points) @ (operator.mT @ signal) - signal
        return 1 - float(residual.square().sum() / signal.square().sum()), operator.sum(0)

    r2, ones = score(basis)
    # Between the cells too, where narrow bumps leave gaps.
    between = points if where.shape is None else _finer(where)
    constant = basis(between) @ ones
    suggestion = None
    if isinstance(basis, RadialBasis) and basis.covariance.shape[0] == 1:
        spacing = float(torch.cdist(basis.centres, basis.centres).fill_diagonal_(torch.inf).amin(-1).median())
        candidates = [(spacing * (0.25 + 0.05 * i)) ** 2 for i in range(26)] if spacing < torch.inf else []
        scores = [(score(type(basis)(basis.centres, v))[0], v) for v in candidates]
        # Wider bumps fit a smooth signal slightly better, but with larger coefficients that cancel: take the narrowest.
        suggestion = min((v for s, v in scores if s >= max(scores)[0] - 1e-3), default=None)
    return Diagnosis(r2, (float(constant.min()), float(constant.max())), suggestion)
