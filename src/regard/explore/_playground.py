"""The playground: one field of scores under every map and density."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard import continuous as C
from regard._rounded import rounded
from regard.continuous.members import describe_density
from regard.explore._requests import Box, Play
from regard.maps.entmax import entmax, softmax, sparsemax
from regard.maps.sinkhorn import sinkhorn
from regard.maps.tvmax import tvmax
from regard.vqa.attention_quality import half_area
from regard.vqa.kinds import Continuous, Discrete, MixtureOf, MixtureSelected

FINE = 96  # points along a side of the grid on which a density is evaluated


def play(request: Play) -> dict[str, Any]:
    """Every map and density of the blobs' scores, each with label, entropy, half area, support and mass in the box."""
    side = request.cells
    cells = C.grid(side, side)
    bumps = _bumps(request, cells.points)
    scores = bumps.sum(0)
    weights = entmax(scores, request.alpha)
    chosen = min(request.chosen, len(request.blobs) - 1)
    maps = {
        "softmax": softmax(scores),
        "entmax": weights,
        "sparsemax": sparsemax(scores),
        "tvmax": tvmax(scores.view(side, side), request.gamma).flatten(),
        "sinkhorn": _blob_shares(bumps, request.eps)[chosen],
    }
    gaussian, paraboloid = C.match_moments(weights, cells, 1), C.match_moments(weights, cells, 2)
    starts = torch.Generator().manual_seed(0)
    densities: dict[str, C.Density] = {
        "gaussian": gaussian,
        "paraboloid": paraboloid,
        "mixture": C.fit_mixture(weights, cells, request.components, iterations=10),
        "selected": C.select_mixture(weights, cells, 4, restarts=2, iterations=10, generator=starts),
    }
    basis = C.GaussianBasis.on_grid(request.functions, request.functions)
    operator = C.ridge(cells, basis)
    effective = {
        "effective-gaussian": operator @ gaussian.expect(basis),
        "effective-paraboloid": operator @ paraboloid.expect(basis),
    }
    panels = {name: _of_weights(w, side, request.box) for name, w in maps.items()}
    panels |= {name: _of_density(d, request.box) for name, d in densities.items()}
    panels |= {name: _of_weights(w, side, request.box) for name, w in effective.items()}
    labels = _labels(request, len(panels["selected"]["density"]["components"]))
    panels = {name: {"label": labels[name]} | panel for name, panel in panels.items()}
    return {"scores": rounded(scores.view(side, side)), "panels": panels}


def _labels(request: Play, selected: int) -> dict[str, str]:
    """What the page writes over each panel; `selected` is the number of components that was chosen."""
    softmax_density, sparsemax_density = Continuous("softmax").label, Continuous("sparsemax").label
    return {
        "softmax": "softmax",
        "entmax": f"entmax {request.alpha:g}",
        "sparsemax": "sparsemax",
        "tvmax": Discrete("tvmax").label,
        "sinkhorn": "Sinkhorn, focused blob",
        "gaussian": softmax_density,
        "paraboloid": sparsemax_density,
        "mixture": MixtureOf(request.components).label,
        "selected": f"{MixtureSelected().label} = {selected}",
        "effective-gaussian": f"effective weights, {softmax_density}",
        "effective-paraboloid": f"effective weights, {sparsemax_density}",
    }


def _bumps(request: Play, points: Tensor) -> Tensor:
    """The scores of each blob on each cell, (blobs, cells)."""
    numbers = torch.tensor([(b.x, b.y, b.size, b.height) for b in request.blobs], dtype=torch.float64)
    distance = (points - numbers[:, None, :2]).square().sum(-1)
    return numbers[:, 3:] * torch.exp(-distance / (2 * numbers[:, 2:3].square()))


def _blob_shares(bumps: Tensor, eps: float) -> Tensor:
    """The weights of each blob on the cells (blobs, cells), by Sinkhorn: every cell gets the same total."""
    return sinkhorn(bumps, eps, iterations=100, tol=1e-3).weights


def _of_weights(w: Tensor, side: int, box: Box | None) -> dict[str, Any]:
    """Weights of a panel, with their entropy in bits relative to uniform attention, support and mass in the box."""
    positive = w.clamp_min(0)
    p = positive / positive.sum().clamp_min(1e-12)
    bits = float(torch.special.entr(p).sum()) / math.log(2) - math.log2(len(w))
    return {
        "weights": rounded(w.view(side, side)),
        "entropy": rounded(bits),
        "half": rounded(float(half_area(w.view(1, side, side)))),
        "support": rounded(float((w > 1e-9).double().mean())),
        "mass": None if box is None else rounded(float((w * _overlap(side, box)).sum())),
    }


def _of_density(density: C.Density, box: Box | None) -> dict[str, Any]:
    centres = (torch.arange(FINE, dtype=torch.float64) + 0.5) / FINE
    points = torch.cartesian_prod(centres, centres).flip(-1)
    p = density.pdf(points)
    return {
        "density": describe_density(density),
        "entropy": rounded(float(density.entropy()) / math.log(2)),
        "half": rounded(float(half_area(p.view(1, FINE, FINE)))),
        "support": rounded(float((p > 0).double().mean())),
        "mass": None if box is None else rounded(float((p * _overlap(FINE, box)).mean())),
    }


def _overlap(side: int, box: Box) -> Tensor:
    """The part of each cell that lies in the box, row by row."""
    edges = torch.linspace(0, 1, side + 1, dtype=torch.float64)

    def along(start: float, end: float) -> Tensor:
        low, high = min(start, end), max(start, end)
        return (edges[1:].clamp_max(high) - edges[:-1].clamp_min(low)).clamp_min(0) * side

    return (along(box.top, box.bottom)[:, None] * along(box.left, box.right)).flatten()
