"""How weights become a density, as a value: the functions of `moments` and `fit` with their parameters fixed.

`MatchMoments(2)`, `functools.partial(match_moments, alpha=2)` and {"name": "match_moments", "alpha": 2} in a
configuration are the same fit. `as_fit` turns each of these spellings into the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, final

from torch import Tensor

from regard import _check
from regard._partial import Bound, bound_of
from regard.continuous.density import Density
from regard.continuous.fit import Criterion, Mixing, fit_mixture, select_mixture
from regard.continuous.locations import Locations
from regard.continuous.moments import match_moments


class Fit(Protocol):
    """From weights (..., L) to densities (5.2): `MatchMoments`, `FitMixture`, `SelectMixture`, or a callable like this.

    >>> import torch
    >>> from regard.continuous import Gaussian, grid
    >>> from regard.nn import ContinuousAttentionPool
    >>> def centred(weights, locations, *, mask):
    ...     return Gaussian(weights @ locations.points.to(weights), 0.01 * torch.eye(2).expand(len(weights), 2, 2))
    >>> ContinuousAttentionPool(4, (3, 3), fit=centred)(torch.randn(5, 9, 4)).density
    Gaussian(mean=(5, 2), cov=(5, 2, 2))
    """

    def __call__(self, weights: Tensor, locations: Locations, *, mask: Tensor | None) -> Density:
        """One density per row."""


@dataclass(frozen=True)
class FitValue:
    """A fit with its parameters. Calling it is calling its function."""

    function: ClassVar[Callable[..., Density]]

    def __call__(self, weights: Tensor, locations: Locations | Tensor, *, mask: Tensor | None = None) -> Density:
        """One density per row of weights (..., L)."""
        return type(self).function(weights, locations, mask=mask, **self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@final
@dataclass(frozen=True)
class MatchMoments(FitValue):
    """See `match_moments`: one density with the mean and covariance of the weights (5.2).

    >>> MatchMoments(2)
    MatchMoments(alpha=2)
    """

    function: ClassVar[Callable[..., Density]] = match_moments
    alpha: float = 1


@final
@dataclass(frozen=True)
class FitMixture(FitValue):
    """See `fit_mixture`: a mixture of `components` densities, by weighted EM (5.22).

    >>> FitMixture(2).components, FitMixture(4, mixing="sparsemax").iterations
    (2, 5)
    """

    function: ClassVar[Callable[..., Density]] = fit_mixture
    components: int = 2
    iterations: int = 5
    init: Literal["regions", "random"] = "regions"
    restarts: int = 1
    alpha: float = 1
    mixing: Mixing = "em"


@final
@dataclass(frozen=True)
class SelectMixture(FitValue):
    """See `select_mixture`: the number of components is chosen per row (5.27).

    >>> SelectMixture(max_components=4).penalty
    0.1
    """

    function: ClassVar[Callable[..., Density]] = select_mixture
    max_components: int = 5
    restarts: int = 3
    penalty: float = 0.1
    criterion: Criterion = "components"
    iterations: int = 20
    alpha: float = 1
    mixing: Mixing = "em"


#: Every fit by the name that configurations use; the functions have the same names.
FITS: dict[str, type[FitValue]] = {
    "match_moments": MatchMoments,
    "fit_mixture": FitMixture,
    "select_mixture": SelectMixture,
}


def as_fit(fit: Any) -> Any:
    """The fit as a value; a callable that is none of regard's fits is returned as it is.

    >>> from functools import partial
    >>> as_fit(match_moments), as_fit(partial(match_moments, alpha=2)), as_fit("select_mixture").restarts
    (MatchMoments(alpha=1), MatchMoments(alpha=2), 3)
    """
    if isinstance(fit, FitValue):
        return fit
    if isinstance(fit, str):
        _check.choice("fit", fit, tuple(FITS))
        return FITS[fit]()
    if isinstance(fit, type) and issubclass(fit, FitValue):
        _check.complain("fit", fit.__name__, "a fit", f"Make one: {fit.__name__}(...).", TypeError)
    if not callable(fit):
        _check.complain("fit", type(fit).__name__, "a fit", "For example MatchMoments(alpha=2).", TypeError)
    function, arguments, keywords = bound_of(fit) or Bound(fit, (), {})
    kind = next((kind for kind in FITS.values() if kind.function is function), None)
    if kind is None or arguments or not keywords.keys() <= {field.name for field in fields(kind)}:
        return fit
    return kind(**keywords)
