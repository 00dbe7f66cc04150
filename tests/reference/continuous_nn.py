"""Continuous attention by brute force: value function and density on a fine grid, and a sum."""

import torch
from torch import Tensor


def fine_points(dimensions: int, count: int, low: float = -1.5, high: float = 2.5) -> tuple[Tensor, float]:
    """Midpoints of small cells (M, d) that cover the unit box and its surroundings, and the volume of one."""
    step = (high - low) / count
    axis = low + step * (torch.arange(count, dtype=torch.float64) + 0.5)
    return torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions), step**dimensions


def expectation(coefficients: Tensor, basis: object, density: object, count: int) -> Tensor:
    """Integral of coefficients' psi(t) p(t) for one density: (N, D) to (D,)."""
    points, volume = fine_points(density.mean.shape[-1], count)
    return (coefficients.mT @ basis(points).mT) @ density.pdf(points) * volume


def ridge_coefficients(values: Tensor, locations: object, basis: object, penalty: float) -> Tensor:
    """Least squares with a penalty, as one system: (L, D) to (N, D)."""
    f = basis(locations.points.double())
    n = f.shape[1]
    system = torch.cat([f, penalty**0.5 * torch.eye(n, dtype=f.dtype)])
    target = torch.cat([values, torch.zeros(n, values.shape[1], dtype=values.dtype)])
    return torch.linalg.lstsq(system, target).solution
