"""The members of a batch of densities, each by itself: as a density, and as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from regard._rounded import rounded
from regard.continuous.density import Density, Elliptical, Gaussian
from regard.continuous.mixture import Mixture
from regard.continuous.moments import density_of
from regard.continuous.truncated import BetaGaussian, PearsonTypeII


def members(density: Density) -> list[Density]:
    """The densities of a batch in order, each without the batch.

    >>> import torch
    >>> from regard.continuous import Paraboloid
    >>> pair = members(Paraboloid(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3)))
    >>> len(pair), pair[0].batch_shape, type(pair[0]).__name__
    (2, torch.Size([]), 'Paraboloid')
    """
    count, d = density.batch_shape.numel(), density.event_shape[0]
    if isinstance(density, Mixture):
        k, parts = density.mixing.shape[-1], density.parts
        mixing, means = density.mixing.reshape(-1, k), parts.mean.reshape(-1, k, d)
        covariances = parts.covariance.reshape(-1, k, d, d)
        return [Mixture(mixing[i], _same_family(parts, means[i], covariances[i])) for i in range(count)]
    assert isinstance(density, Elliptical)
    means, covariances = density.mean.reshape(-1, d), density.covariance.reshape(-1, d, d)
    return [_same_family(density, means[i], covariances[i]) for i in range(count)]


def batch_part(density: Density, rows: slice) -> Density:
    """The densities `rows` of a batch with one axis, as a batch.

    >>> import torch
    >>> from regard.continuous import Gaussian
    >>> batch_part(Gaussian(torch.zeros(5, 2), torch.eye(2).expand(5, 2, 2)), slice(1, 3)).batch_shape
    torch.Size([2])
    """
    return _with_parameters(density, lambda x: x[rows])


def on_cpu(density: Density) -> Density:
    """The same density, or batch of them, on the CPU.

    >>> import torch
    >>> from regard.continuous import Gaussian
    >>> on_cpu(Gaussian(torch.zeros(2), torch.eye(2))).mean.device
    device(type='cpu')
    """
    return _with_parameters(density, lambda x: x.cpu())


def _with_parameters(density: Density, change: Callable[[Tensor], Tensor]) -> Density:
    """The density with changed parameters."""
    if isinstance(density, Mixture):
        parts = density.parts
        return Mixture(change(density.mixing), _same_family(parts, change(parts.mean), change(parts.covariance)))
    assert isinstance(density, Elliptical)
    return _same_family(density, change(density.mean), change(density.covariance))


def describe_density(density: Density) -> dict[str, Any]:
    """One density on the plane as plain numbers: its family, and components with share, mean and covariance.

    A family that alpha alone tells apart has `alpha` too.

    >>> import torch
    >>> from regard.continuous import Gaussian
    >>> describe_density(Gaussian(torch.tensor([0.5, 0.25]), torch.eye(2)))["components"]
    [{'share': 1.0, 'mean': [0.5, 0.25], 'covariance': [[1.0, 0.0], [0.0, 1.0]]}]
    """
    parts = density.parts if isinstance(density, Mixture) else density
    shares = density.mixing.reshape(-1).tolist() if isinstance(density, Mixture) else [1.0]
    means, covariances = parts.mean.reshape(-1, 2), parts.covariance.reshape(-1, 2, 2)
    components = [
        {"share": rounded(share), "mean": rounded(mean), "covariance": rounded(covariance)}
        for share, mean, covariance in zip(shares, means, covariances, strict=True)
        if share > 0
    ]
    family: dict[str, Any] = {"family": type(parts).__name__.lower()}
    if type(parts) is BetaGaussian:
        family["alpha"] = parts.alpha
    return {**family, "components": components}


def _same_family(density: Elliptical, mean: Tensor, covariance: Tensor) -> Elliptical:
    if isinstance(density, BetaGaussian):
        return density_of(mean, covariance, density.alpha)
    if isinstance(density, PearsonTypeII):
        return PearsonTypeII(mean, covariance, density.power)
    return Gaussian(mean, covariance)
