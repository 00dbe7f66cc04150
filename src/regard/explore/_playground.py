"""The playground: one field of scores under every map and density."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard import continuous as C
from regard.explore._asked import Box, Play
from regard.maps.entmax import entmax, softmax, sparsemax
from regard.maps.sinkhorn import sinkhorn
from regard.maps.tvmax import tvmax

FINE = 96  # points along a side where a density is measured


def play(asked: Play) -> dict[str, Any]:
    """Every map and density of the blobs' scores, each with its entropy, support and mass in the box."""
    side = asked.cells
    cells = C.grid(side, side)
    bumps = _bumps(asked, cells.points)
    scores = bumps.sum(0)
    weights = entmax(scores, asked.alpha)
    chosen = min(asked.chosen, len(asked.blobs) - 1)
    maps = {
        "softmax": softmax(scores),
        "entmax": weights,
        "sparsemax": sparsemax(scores),
        "tvmax": tvmax(scores.view(side, side), asked.gamma).flatten(),
        "sinkhorn": _shares(bumps, asked.eps)[chosen],
    }
    gaussian, paraboloid = C.match_moments(weights, cells, 1), C.match_moments(weights, cells, 2)
    starts = torch.Generator().manual_seed(0)
    densities: dict[str, C.Density] = {
        "gaussian": gaussian,
        "paraboloid": paraboloid,
        "mixture": C.fit_mixture(weights, cells, asked.components, iterations=10),
        "selected": C.select_mixture(weights, cells, 4, restarts=2, iterations=10, generator=starts),
    }
    basis = C.GaussianBasis.on_grid(asked.functions, asked.functions)
    operator = C.ridge(cells, basis)
    effective = {
        "effective-gaussian": operator @ gaussian.expect(basis),
        "effective-paraboloid": operator @ paraboloid.expect(basis),
    }
    panels = {name: _of_weights(w, side, asked.box) for name, w in (maps | effective).items()}
    panels |= {name: _of_density(d, asked.box) for name, d in densities.items()}
    return {"scores": _rows(scores, side), "panels": panels}


def _bumps(asked: Play, points: Tensor) -> Tensor:
    """The scores of each blob on each cell, (blobs, cells)."""
    numbers = torch.tensor([(b.x, b.y, b.size, b.height) for b in asked.blobs], dtype=torch.float64)
    distance = (points - numbers[:, None, :2]).square().sum(-1)
    return numbers[:, 3:] * torch.exp(-distance / (2 * numbers[:, 2:3].square()))


def _shares(bumps: Tensor, eps: float) -> Tensor:
    """How the blobs share out the cells when each cell must be used as much as any other."""
    return sinkhorn(bumps, eps, iterations=100, tol=1e-3).weights


def _of_weights(w: Tensor, side: int, box: Box | None) -> dict[str, Any]:
    """Bits of entropy against even attention, and the share of the cells with any weight."""
    positive = w.clamp_min(0)
    p = positive / positive.sum().clamp_min(1e-12)
    bits = float(torch.special.entr(p).sum()) / math.log(2) - math.log2(len(w))
    return {
        "weights": _rows(w, side),
        "entropy": _round(bits),
        "support": _round(float((w > 1e-9).double().mean())),
        "mass": None if box is None else _round(float((w * _overlap(side, box)).sum())),
    }


def _of_density(density: C.Density, box: Box | None) -> dict[str, Any]:
    fine = (torch.arange(FINE, dtype=torch.float64) + 0.5) / FINE
    points = torch.cartesian_prod(fine, fine).flip(-1)
    p = density.pdf(points)
    return {
        "density": described(density),
        "entropy": _round(float(density.entropy()) / math.log(2)),
        "support": _round(float((p > 0).double().mean())),
        "mass": None if box is None else _round(float((p * _overlap(FINE, box)).mean())),
    }


def described(density: C.Density) -> dict[str, Any]:
    """A density as plain numbers: the form that a prediction has."""
    parts = density.parts if isinstance(density, C.Mixture) else density
    shares = density.mixing.reshape(-1).tolist() if isinstance(density, C.Mixture) else [1.0]
    means, covariances = parts.mean.reshape(-1, 2).tolist(), parts.covariance.reshape(-1, 2, 2).tolist()
    return {
        "family": type(parts).__name__.lower(),
        "components": [
            {"share": share, "mean": mean, "covariance": covariance}
            for share, mean, covariance in zip(shares, means, covariances, strict=True)
            if share > 0
        ],
    }


def _overlap(side: int, box: Box) -> Tensor:
    """The part of each cell that lies in the box, row by row."""
    edges = torch.linspace(0, 1, side + 1, dtype=torch.float64)

    def along(one: float, other: float) -> Tensor:
        low, high = min(one, other), max(one, other)
        return (edges[1:].clamp_max(high) - edges[:-1].clamp_min(low)).clamp_min(0) * side

    return (along(box.top, box.bottom)[:, None] * along(box.left, box.right)).flatten()


def _rows(w: Tensor, side: int) -> list[list[float]]:
    return [[_round(x) for x in row] for row in w.view(side, side).tolist()]


def _round(x: float) -> float:
    return round(x, 6) if math.isfinite(x) else 0.0
