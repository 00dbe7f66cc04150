"""Cosines: the basis for which every expectation is closed form, in every dimension.

Legend: N functions, d dimensions, S = 2^(d-1) choices of sign, (...) any batch.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard._torch import with_values
from regard.continuous.basis import Basis
from regard.continuous.bessel import normalised_bessel


class FourierBasis(Basis):
    """psi_k(t) = prod_i c(k_i) cos(pi k_i t_i), c(0) = 1 and c(k) = sqrt(2) otherwise: equation (5.12).

    `numbers` (N, d) holds the k_i, usually whole numbers. The functions are orthonormal on the unit box, and on the
    centres of a grid with more cells than frequencies, so ridge regression needs no solve. Outside the box they mirror
    it. A product of cosines is a mean of cosines of sums, so the expectation is a characteristic function: exp(-w' S w
    / 2) under a Gaussian, a Bessel function under a truncated density (5.19). Differentiable in mean and covariance,
    any number of times.

    >>> basis = FourierBasis.on_grid(10, 10)
    >>> len(basis), basis(torch.rand(5, 2)).shape
    (100, torch.Size([5, 100]))
    """

    def __init__(self, numbers: Tensor) -> None:
        """`numbers` (N, d), floating point."""
        _check.floating("numbers", numbers)
        if numbers.dim() != 2 or 0 in numbers.shape:
            _check.complain("numbers", f"shape {tuple(numbers.shape)}", "(N, d), not empty", "One row per function.")
        signs = torch.tensor([(1, *s) for s in itertools.product((1, -1), repeat=numbers.shape[1] - 1)])
        waves = math.pi * numbers.double()
        scale = (1 + (math.sqrt(2) - 1) * (waves != 0).double()).prod(-1)
        # (S N, d): cos a cos b = (cos(a + b) + cos(a - b)) / 2, and so on.
        mixed = (signs.to(waves).unsqueeze(1) * waves).flatten(0, 1)
        outer = (mixed.unsqueeze(-1) * mixed.unsqueeze(-2)).flatten(-2)
        super().__init__({"waves": waves, "scale": scale, "mixed": mixed, "outer": outer})
        self._signs = len(signs)

    @classmethod
    def on_grid(cls, height: int, width: int) -> FourierBasis:
        """The height x width lowest frequencies of the unit square."""
        with with_values():
            rows = torch.arange(_check.count("height", height), dtype=torch.float64)
            columns = torch.arange(_check.count("width", width), dtype=torch.float64)
            return cls(torch.cartesian_prod(rows, columns).flip(-1))

    @classmethod
    def on_line(cls, length: int) -> FourierBasis:
        """The `length` lowest frequencies of the unit interval."""
        with with_values():
            return cls(torch.arange(_check.count("length", length), dtype=torch.float64).unsqueeze(-1))

    @property
    def numbers(self) -> Tensor:
        """(N, d), in float64."""
        return self._tensors["waves"] / math.pi

    def __repr__(self) -> str:
        return shown(self, {"numbers": self.numbers})

    @property
    def dimensions(self) -> int:
        """The dimension d of the space."""
        return self._tensors["waves"].shape[1]

    def __len__(self) -> int:
        """The number N of functions."""
        return self._tensors["waves"].shape[0]

    def __call__(self, t: Tensor) -> Tensor:
        """psi(t): (..., d) -> (..., N)."""
        _check.finite("t", t)
        tensors = self.like(t)
        return (
            torch.cos(t.to(tensors["waves"].dtype).unsqueeze(-2) * tensors["waves"]).prod(-1) * tensors["scale"]
        ).to(t.dtype)

    def under_gaussian(self, mean: Tensor, covariance: Tensor, chords: int | None = None) -> Tensor:
        """E[cos(w.t)] = cos(w.mean) exp(-w' covariance w / 2), equation (5.18). `chords` must be None."""
        return self._expectation(mean, torch.exp(-0.5 * self._spread(covariance)), chords)

    def under_ball(self, mean: Tensor, covariance: Tensor, p: float, chords: int | None = None) -> Tensor:
        """E[cos(w.t)] = cos(w.mean) Lambda_(d/2+p)(kappa^2), equation (5.19). `chords` must be None."""
        d = self.dimensions
        kappa_squared = (d + 2 * p + 2) * self._spread(covariance)
        return self._expectation(mean, normalised_bessel(kappa_squared, d / 2 + p), chords)

    def _spread(self, covariance: Tensor) -> Tensor:
        """w' covariance w, (..., S N)."""
        return (covariance.flatten(-2) @ self.like(covariance)["outer"].mT).clamp_min(0)

    def _expectation(self, mean: Tensor, damping: Tensor, chords: int | None) -> Tensor:
        if chords is not None:
            _check.complain("chords", chords, "None: this expectation is closed form", "Leave it out.")
        tensors = self.like(mean)
        waves = torch.cos(mean @ tensors["mixed"].mT) * damping
        return waves.reshape(*waves.shape[:-1], self._signs, -1).mean(-2) * tensors["scale"]
