"""Basis functions psi_1 ... psi_N of the value function V(t) = B psi(t): what every basis can do.

A basis evaluates itself, and knows its expectation under the two kinds of density: `under_gaussian` and `under_ball`
(the image of (1 - |u|^2)^p on the unit ball). Another basis is another class with these methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.continuous.locations import Locations, working_dtype


class Basis(ABC):
    """N fixed functions on R^d (5.8, 5.10, 5.12). No gradient flows to them: their ridge operator is solved once.

    >>> from regard.continuous import GaussianBasis
    >>> basis = GaussianBasis.on_grid(2, 3)
    >>> len(basis), basis.dimensions, basis(torch.rand(7, 2)).shape
    (6, 2, torch.Size([7, 6]))
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        """Keep float64 copies; `like` casts them to the dtype of an operand."""
        for name, x in tensors.items():
            _check.floating(name, x)
            _check.finite(name, x)
            if x.requires_grad:
                _check.complain(name, "a tensor with gradient", "fixed numbers", "Pass it through .detach().")
        self._tensors = {name: x.double() for name, x in tensors.items()}
        self._cast: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        # Cache of ridge operators, for as long as their locations live: see `ridge`.
        self.operators: WeakKeyDictionary[Locations, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()

    def like(self, x: Tensor) -> dict[str, Tensor]:
        """The tensors of the basis on the device and in the working dtype of `x`."""
        key = (working_dtype(x.dtype), x.device)
        if key in self._cast:
            return self._cast[key]
        cast = {name: y.to(x.device, key[0]) for name, y in self._tensors.items()}
        if not torch.compiler.is_compiling():  # a traced tensor has no values to cache
            self._cast[key] = cast
        return cast

    def __getstate__(self) -> dict[str, Any]:
        """Without the caches: their keys are weak references, which cannot be copied or written to a file."""
        return vars(self) | {"_cast": {}, "operators": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The state, with empty caches."""
        vars(self).update(state | {"operators": WeakKeyDictionary()})

    def __repr__(self) -> str:
        return shown(self, self._tensors)

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """The dimension d of the space."""

    @abstractmethod
    def __len__(self) -> int:
        """The number N of functions."""

    @abstractmethod
    def __call__(self, t: Tensor) -> Tensor:
        """psi(t): (..., d) -> (..., N)."""

    @abstractmethod
    def under_gaussian(self, mean: Tensor, covariance: Tensor, chords: int | None = None) -> Tensor:
        """E[psi] under N(mean, covariance): (..., d), (..., d, d) -> (..., N)."""

    @abstractmethod
    def under_ball(self, mean: Tensor, covariance: Tensor, p: float, chords: int | None = None) -> Tensor:
        """E[psi] under a density proportional to (1 - |u|^2)^p on an ellipsoid, (..., N).

        `mean`: (..., d), of the density.
        `covariance`: (..., d, d), of the density.
        `p`: the power, above -1.
        `chords`: nodes of the quadrature, where there is one; default depends on the dtype.
        """


def only_one_or_two(what: str, dimensions: int) -> None:
    """Complain about an integral over an ellipsoid that is written out in one and two dimensions only."""
    if dimensions > 2:
        _check.complain("basis", f"{what} in {dimensions} dimensions", "1 or 2", "FourierBasis works in any dimension.")
