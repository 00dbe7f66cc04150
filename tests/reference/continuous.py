"""Continuous attention from the definitions: adaptive integration, loops, and no cleverness."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import cubature, quad_vec
from scipy.special import gamma
from torch import Tensor


def cases(side: int = 14) -> dict[str, Tensor]:
    """Weights (L,) on a side x side grid that attention meets: flat, noisy, blobs of several sizes, peaks, a row."""
    generator = torch.Generator().manual_seed(3)
    axis = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    x, y = axis.repeat(side), axis.repeat_interleave(side)
    size = side * side
    found = {"uniform": torch.full((size,), 1 / size, dtype=torch.float64)}
    for scale in (1, 3):
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        found[f"softmax of {scale} normals"] = torch.softmax(scale * noise, 0)
    for sd in (0.03, 0.05, 0.08, 0.13):
        cx, cy = torch.rand(2, generator=generator, dtype=torch.float64)
        found[f"blob {sd}"] = torch.softmax(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * sd**2), 0)
    one = torch.zeros(size, dtype=torch.float64)
    one[size // 2 + 3] = 1
    found["one-hot"] = one
    found["0.99 one-hot"] = 0.99 * one + 0.01 / size
    row = torch.zeros(side, side, dtype=torch.float64)
    row[side // 3] = 1 / side
    found["row"] = row.flatten()
    found["diagonal"] = torch.eye(side, dtype=torch.float64).flatten() / side
    corners = torch.zeros(size, dtype=torch.float64)
    corners[0] = corners[-1] = 0.5
    found["two corners"] = corners
    return found


def moments(weights: Tensor, points: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the density that is constant on each cell, cell by cell."""
    d = points.shape[1]
    mean, second = torch.zeros(d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
    for w, t in zip(weights.double() / weights.double().sum(), points.double(), strict=True):
        mean += w * t
        second += w * (torch.outer(t, t) + torch.diag(sides.double() ** 2 / 12))
    return mean, second - torch.outer(mean, mean)


def ball_expectation(
    function: Callable[[np.ndarray], np.ndarray],
    mean: Tensor,
    covariance: Tensor,
    power: float,
    tolerance: float = 1e-12,
) -> np.ndarray:
    """E[function(t, u)] under (1 - |u|^2)^power pushed to that mean and covariance, by adaptive cubature.

    `function` maps points t (M, d) and u (M, d) to (M, ...).
    """
    mu, cov = mean.double().numpy(), covariance.double().numpy()
    d = len(mu)
    factor = np.linalg.cholesky((d + 2 * power + 2) * cov)
    constant = gamma(d / 2 + power + 1) / (math.pi ** (d / 2) * gamma(power + 1))

    def integrand(x: np.ndarray) -> np.ndarray:
        # Angles: u_i = cos(a_1) ... cos(a_(i-1)) sin(a_i), so that 1 - |u|^2 is the product of the squared cosines.
        cos = np.cos(x)
        before = np.concatenate([np.ones((len(x), 1)), np.cumprod(cos, -1)[:, :-1]], -1)
        u = before * np.sin(x)
        weight = constant * np.prod(before * cos, -1) * np.prod(cos, -1) ** (2 * power)
        value = function(mu + u @ factor.T, u)
        return weight.reshape(-1, *[1] * (value.ndim - 1)) * value

    return _adaptive(integrand, [-math.pi / 2] * d, [math.pi / 2] * d, tolerance)


def gaussian_expectation(
    function: Callable[[np.ndarray], np.ndarray], mean: Tensor, covariance: Tensor, tolerance: float = 1e-10
) -> np.ndarray:
    """E[function(t, z)] under N(mean, covariance), by adaptive cubature over nine standard deviations."""
    mu, factor = mean.double().numpy(), np.linalg.cholesky(covariance.double().numpy())
    d = len(mu)

    def integrand(z: np.ndarray) -> np.ndarray:
        weight = np.exp(-0.5 * (z**2).sum(-1)) / (2 * math.pi) ** (d / 2)
        value = function(mu + z @ factor.T, z)
        return weight.reshape(-1, *[1] * (value.ndim - 1)) * value

    return _adaptive(integrand, [-9.0] * d, [9.0] * d, tolerance)


def _adaptive(
    f: Callable[[np.ndarray], np.ndarray], low: list[float], high: list[float], tolerance: float
) -> np.ndarray:
    # The tolerance is relative to the largest entry: a first, coarse answer says how large that is.
    rough = cubature(f, low, high, rule="gk21", rtol=1e-2, atol=1e-3, max_subdivisions=400)
    scale = max(float(np.abs(rough.estimate).max()), 1e-30)
    return cubature(f, low, high, rule="gk21", rtol=0, atol=tolerance * scale, max_subdivisions=4000).estimate


def normal_pdf(t: np.ndarray, centres: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """N(t; m_j, S_j), (M, N), for centres (N, d) and covariances (N or 1, d, d)."""
    inverse, scale = np.linalg.inv(covariances), np.sqrt(np.linalg.det(2 * math.pi * covariances))
    offset = t[:, None] - centres
    d = range(t.shape[1])
    distance = sum(inverse[:, i, j] * offset[..., i] * offset[..., j] for i in d for j in d)
    return np.exp(-0.5 * distance) / scale


def paraboloid_pdf(t: np.ndarray, mean: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """[-lambda - (t - mu)' Sigma^-1 (t - mu) / 2]_+, the thesis' form, with its lambda (3.15): (M,)."""
    d = len(mean)
    lam = -((gamma(d / 2 + 2) / np.sqrt(np.linalg.det(2 * math.pi * sigma))) ** (2 / (2 + d)))
    offset = t - mean
    return np.maximum(-lam - 0.5 * np.einsum("mi,ij,mj->m", offset, np.linalg.inv(sigma), offset), 0)


def ridge(points: Tensor, basis: Callable[[Tensor], Tensor], penalty: float, values: Tensor) -> Tensor:
    """The minimiser B of |B F - H|^2 + penalty |B|^2 as a least squares problem with extra rows, for values (L, D)."""
    f = basis(points.double()).mT
    n = f.shape[0]
    rows = torch.cat([f.mT, math.sqrt(penalty) * torch.eye(n, dtype=torch.float64)])
    targets = torch.cat([values.double(), torch.zeros(n, values.shape[1], dtype=torch.float64)])
    return torch.linalg.lstsq(rows, targets).solution.mT


def em_step(weights: Tensor, points: Tensor, within: Tensor, mixing: Tensor, means: Tensor, covariances: Tensor):
    """One E and one M step for one example, with loops over components and locations, in plain probabilities."""
    k, length = len(mixing), len(points)
    gamma_ = torch.zeros(k, length, dtype=torch.float64)
    for location in range(length):
        for c in range(k):
            offset = points[location] - means[c]
            inverse = torch.linalg.inv(covariances[c])
            log = -0.5 * (offset @ inverse @ offset + torch.trace(inverse @ within))
            gamma_[c, location] = (
                mixing[c] * torch.exp(log) / torch.sqrt(torch.linalg.det(2 * math.pi * covariances[c]))
            )
    evidence = gamma_.sum(0)
    loglik = (weights * evidence.log()).sum()
    gamma_ = gamma_ / evidence
    mass = (weights * gamma_).sum(-1)
    means = torch.stack([(weights * gamma_[c]) @ points / mass[c] for c in range(k)])
    covariances = torch.stack(
        [
            sum(
                weights[n] * gamma_[c, n] * torch.outer(points[n] - means[c], points[n] - means[c])
                for n in range(length)
            )
            / mass[c]
            + within
            for c in range(k)
        ]
    )
    return mass, means, covariances, loglik


def paraboloid_by_rays(
    mean: Tensor, covariance: Tensor, centre: Tensor, spread: Tensor, power: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E[psi], its gradient in the mean and in the covariance, for one truncated paraboloid psi in the plane.

    psi has the centre and covariance `centre`, `spread`. The density is the Gaussian, or (1 - |u|^2)^power on an
    ellipse, with `mean` and `covariance`. In polar coordinates around the mean every ray meets psi in an interval,
    whose ends are roots of a quadratic; along it Gauss-Legendre, over the angles adaptive integration.
    """
    k = 1.0 if power is None else 2 * power + 4
    mu, m = mean.double().numpy(), centre.double().numpy()
    out = np.linalg.cholesky(k * covariance.double().numpy())
    into = np.linalg.inv(np.linalg.cholesky(6 * spread.double().numpy()))
    peak = 2 / math.pi * np.linalg.det(into)
    e, to_z = into @ (mu - m), into @ out
    x, w = np.polynomial.legendre.leggauss(80)
    end = 10.0 if power is None else 1.0

    def ray(angle: float) -> np.ndarray:
        direction = np.array([math.cos(angle), math.sin(angle)])
        d = to_z @ direction
        a, b, c = d @ d, e @ d, e @ e - 1
        if b * b <= a * c:
            return np.zeros(7)
        root = math.sqrt(b * b - a * c)
        # Both roots without cancellation.
        large = -(b + math.copysign(root, b))
        low, high = sorted((large / a, c / large if large else 0.0))
        low, high = (min(max(value, 0.0), end) for value in (low, high))
        if power is None:
            r, weight = (high + low) / 2 + (high - low) / 2 * x, (high - low) / 2 * w
            weight = weight * r * np.exp(-(r**2) / 2) / (2 * math.pi)
        else:
            # With r = sin(a) both ends are smooth.
            first, last = math.asin(low), math.asin(high)
            a, weight = (last + first) / 2 + (last - first) / 2 * x, (last - first) / 2 * w
            r, weight = np.sin(a), weight * np.sin(a) * np.cos(a) ** (2 * power + 1) * (power + 1) / math.pi
        z = e[:, None] + np.outer(d, r)
        value = (weight * (1 - (z**2).sum(0))).sum()
        cross = np.outer(direction, (weight * r * z).sum(-1))
        return np.concatenate([[value], (weight * z).sum(-1), cross.ravel()])

    # Kinks: the axes of psi as the density sees it, and the tangents from a mean outside of it.
    axes = np.linalg.svd(to_z)[2]
    angles = [math.atan2(s * v[1], s * v[0]) % (2 * math.pi) for v in axes for s in (1, -1)]
    if e @ e > 1:
        towards, half = math.atan2(-e[1], -e[0]), math.asin(1 / math.sqrt(e @ e))
        inverse = np.linalg.inv(to_z)
        for side in (towards - half, towards, towards + half):
            ray_z = inverse @ np.array([math.cos(side), math.sin(side)])
            angles.append(math.atan2(ray_z[1], ray_z[0]) % (2 * math.pi))
    total = np.zeros(7)
    ends = sorted({0.0, 2 * math.pi, *angles})
    for low, high in pairwise(ends):
        # A sine makes the square root at a tangent smooth.
        middle, half = (low + high) / 2, (high - low) / 2
        total += quad_vec(
            lambda s, middle=middle, half=half: ray(middle + half * math.sin(s)) * half * math.cos(s),
            -math.pi / 2,
            math.pi / 2,
            epsrel=1e-11,
            epsabs=1e-14,
            limit=2000,
        )[0]
    by_covariance = k * np.linalg.inv(out).T @ total[3:].reshape(2, 2) @ into * -peak
    return total[0] * peak, -2 * peak * total[1:3] @ into, (by_covariance + by_covariance.T) / 2


def density_loss(
    linear: Tensor, quadratic: Tensor, alpha: float, w: Tensor, points: Tensor, sides: Tensor, fine: int = 40
) -> float:
    """(3.3) for f(t) = linear.t + t' quadratic t: its map by bisection on A, every integral as a sum of small cells.

    `alpha`: family.
    `w`: weights of cells, `points` and `sides` of these.
    `fine`: small cells in a cell of the target along an axis.
    """
    d, half = len(linear), -2 * quadratic.numpy()
    centre = np.linalg.solve(half, linear.numpy())

    def score(t: np.ndarray) -> np.ndarray:
        return t @ linear.numpy() + ((t @ quadratic.numpy()) * t).sum(-1)

    def density(t: np.ndarray, small: float) -> np.ndarray:
        f = score(t)
        low, high = f.max() - 1e7, f.max() + 1e7
        for _ in range(90):
            middle = (low + high) / 2
            with np.errstate(over="ignore"):
                x = f - middle
                p = np.exp(x) if alpha == 1 else np.maximum(1 + (alpha - 1) * x, 0) ** (1 / (alpha - 1))
                low, high = (middle, high) if p.sum() * small > 1 else (low, middle)
        return p

    def omega(p: np.ndarray, volume: float) -> float:
        if alpha == 1:
            return float((p * np.log(np.where(p > 0, p, 1))).sum() * volume)
        return float(((p**alpha).sum() * volume - 1) / (alpha * (alpha - 1)))

    # A box around the mean, in the axes of the score: first a wide one, then one just around what has mass.
    lower, radius = np.linalg.cholesky(np.linalg.inv(half)), 60.0
    for n in (400, 400, 400):
        axis = ((np.arange(n) + 0.5) / n * 2 - 1) * radius
        u = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), -1).reshape(-1, d)
        small = (2 * radius / n) ** d * abs(np.linalg.det(lower))
        t = centre + u @ lower.T
        p = density(t, small)
        inside = np.abs(u[p > 1e-14 * p.max()]).max()
        radius = min(radius, 1.02 * inside + 2 * radius / n)
    conjugate = float((p * score(t)).sum() * small) - omega(p, small)
    volume = float(sides.prod())
    middles = (np.arange(fine) + 0.5) / fine - 0.5
    offsets = np.stack(np.meshgrid(*[middles] * d, indexing="ij"), -1).reshape(-1, d) * sides.numpy()
    expected = sum(x * float(score(at + offsets).mean()) for x, at in zip(w.tolist(), points.numpy(), strict=True))
    return conjugate + omega(w.numpy() / volume, volume) - expected
