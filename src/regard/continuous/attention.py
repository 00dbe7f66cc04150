"""Weights to a density, the density to effective weights, the weights to a context.

Legend: (...) batch, L locations, N basis functions, D channels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.continuous.basis import Basis
from regard.continuous.density import Density
from regard.continuous.fit import Mixing, fit_mixture
from regard.continuous.locations import Locations, as_locations
from regard.continuous.moments import match_moments
from regard.continuous.ridge import PENALTY, ridge


class Attended(NamedTuple):
    """The context (..., D), the density it is an expectation under, and the effective weights (..., L) (5.28).

    >>> import torch
    >>> from regard.continuous import FourierBasis, grid
    >>> out = continuous_attention(torch.randn(9, 5), torch.ones(9) / 9, grid(3, 3), FourierBasis.on_grid(3, 3))
    >>> out.context.shape, out.weights.shape, type(out.density).__name__
    (torch.Size([5]), torch.Size([9]), 'Gaussian')
    """

    context: Tensor
    density: Density
    weights: Tensor

    def __repr__(self) -> str:
        return shown(self, self._asdict())


def continuous_attention(
    values: Tensor,
    weights: Tensor,
    locations: Locations | Tensor,
    basis: Basis,
    alpha: float = 1,
    components: int = 1,
    *,
    iterations: int = 5,
    init: Literal["regions", "random"] = "regions",
    mixing: Mixing = "em",
    penalty: float = PENALTY,
    padding: bool = False,
    operator: Tensor | None = None,
    mask: Tensor | None = None,
    chords: int | None = None,
) -> Attended:
    """The expectation of a continuous value function under a density fitted to discrete weights: equation (5.28).

    c = H (G r) with r = E_p[psi] and H the values. B = H G is never formed: the effective weights w = G r say what each
    location contributed (they may be negative, and need not sum to one).

    `values`: H, (..., L, D).
    `weights`: (..., L), or (..., Q, L) for Q queries on the same values; divided by their sum.
    `locations`: where the values are, L of them; an (L, d) tensor is taken as bare points.
    `basis`: N functions of which the value function is a combination.
    `alpha`: family of the density, 1 (Gaussian), 2 (paraboloid) or any number between 1 and 3; default 1.
    `components`: 1 fits by `match_moments`, more fit a mixture by `fit_mixture`; default 1.
    `iterations`, `init`, `mixing`: as in `fit_mixture`; unused with one component.
    `penalty`, `padding`: as in `ridge`, which solves for G.
    `operator`: G (L, N) that was solved before, a module's buffer for example, in place of penalty and padding.
    `mask`: boolean, broadcasts to weights, True = takes part. Masked locations enter neither the density nor the
    regression; a row without any location has a context of zero.
    `chords`: nodes of the quadrature, where there is one; default depends on the dtype.

    Differentiable in values and weights. Half-precision weights are computed in float32; results have the dtypes of
    values and weights.

    >>> import torch
    >>> from regard import continuous as C
    >>> cells, basis = C.grid(14, 14), C.GaussianBasis.on_grid(10, 10)
    >>> out = continuous_attention(torch.randn(2, 196, 8), torch.rand(2, 196), cells, basis, alpha=2)
    >>> out.context.shape, out.weights.shape
    (torch.Size([2, 8]), torch.Size([2, 196]))
    """
    where = as_locations(locations)
    _check.floating("values", values, min_dims=2)
    _check.last_axis("values", values.mT, len(where), "locations")
    density: Density
    if components == 1:
        density = match_moments(weights, where, alpha, mask)
    else:
        density = fit_mixture(weights, where, components, iterations, init, alpha=alpha, mixing=mixing, mask=mask)
    if operator is None:
        operator = ridge(where, basis, penalty, padding, mask)
    elif (penalty, padding) != (PENALTY, False):
        _check.complain("operator", "penalty or padding beside it", "one or the other", "Pass them to ridge.")
    context, _, effective = read_out(values, density, basis, operator, mask, chords)
    return Attended(context, density, effective.to(weights.dtype))


def read_out(
    values: Tensor,
    density: Density,
    basis: Basis,
    operator: Tensor,
    mask: Tensor | None = None,
    chords: int | None = None,
) -> Attended:
    """The expectation of the value function under an existing density: equation (5.28).

    `values`: (..., L, D).
    `density`: batch shape (...), or (..., Q) for Q queries on the same values.
    `basis`: the N functions that `operator` was solved for.
    `operator`: (L, N) or (..., L, N), from `ridge`.
    `mask`: (..., L), as in `continuous_attention`; default None, every location takes part.
    `chords`: as in `continuous_attention`.

    Differentiable in the values and in the parameters of the density.

    >>> import torch
    >>> from regard import continuous as C
    >>> cells, basis = C.grid(14, 14), C.FourierBasis.on_grid(8, 8)
    >>> density = C.Gaussian(torch.full((3, 2), 0.5), 0.01 * torch.eye(2).expand(3, 2, 2))
    >>> read_out(torch.ones(3, 196, 5), density, basis, C.ridge(cells, basis)).context.shape
    torch.Size([3, 5])
    """
    r = density.expect(basis, chords)
    operator = operator.to(r)
    effective = r @ operator.mT if operator.dim() == 2 else (operator @ r.unsqueeze(-1)).squeeze(-1)
    if mask is not None:
        effective = effective.masked_fill(~mask, 0)
    rows = effective.to(values.dtype)
    context = rows @ values if rows.dim() == values.dim() else (rows.unsqueeze(-2) @ values).squeeze(-2)
    _check_context(context, values, operator)
    return Attended(context, density, effective)


def _check_context(context: Tensor, values: Tensor, operator: Tensor) -> None:
    """An error that names the argument which is not finite. NaN and infinity show in the context, which is small."""
    if _check.values_checked(context) and not bool(context.detach().isfinite().all()):
        _check.finite("values", values)
        _check.finite("operator", operator)
        got = f"values so large that their sums overflow {context.dtype}"
        _check.complain("values", got, "finite sums", "Scale the values down.")
