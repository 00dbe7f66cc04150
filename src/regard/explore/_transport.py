"""Transport for the page: the plan at one eps, the distance at decreasing eps, and SwAV's assignment of a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard._rounded import rounded
from regard.explore._requests import Batch, Histograms, Points
from regard.maps.sinkhorn import sinkhorn
from regard.wasserstein import entropic_wasserstein, histogram_wasserstein

LADDER = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002]
ITERATIONS = 300  # at most, of Sinkhorn; the page says if it has not converged
RESIDUAL = 1e-3


def move(request: Points | Histograms) -> dict[str, Any]:
    """The entropic plan between two point sets or histograms, and the distance at decreasing eps."""
    if isinstance(request, Points):
        x, y = (torch.tensor(p, dtype=torch.float64) for p in (request.x, request.y))
        a, b = (torch.full((len(p),), 1 / len(p), dtype=torch.float64) for p in (x, y))
        exact = _exact_distance(x, y)
    else:
        n, m = len(request.a), len(request.b)
        x, y = ((torch.arange(k, dtype=torch.float64)[:, None] + 0.5) / k for k in (n, m))
        a, b = (_normalised(h) for h in (request.a, request.b))
        exact = float(histogram_wasserstein(a, b, x.flatten(), p=2)) if n == m else None
    cost = torch.cdist(x, y).square()
    transport = sinkhorn(-cost, request.eps, ITERATIONS, RESIDUAL, a, b)
    return {
        "plan": rounded(transport.plan),
        "distance": _distance(transport.plan, cost),
        "residual": float(transport.residual),
        "iterations": transport.iterations,
        "converged": bool(transport.converged),
        "ladder": [_rung(x, y, a, b, cost, eps) for eps in LADDER] if request.ladder else None,
        "exact": exact,
    }


def _rung(x: Tensor, y: Tensor, a: Tensor, b: Tensor, cost: Tensor, eps: float) -> dict[str, float]:
    """At one eps: the cost of the entropic plan, and the debiased distance (Sinkhorn divergence).

    `x`, `y`: points (n, d) and (m, d).
    `a`, `b`: their masses, (n,) and (m,).
    `cost`: (n, m).
    `eps`: strength of the entropy.
    """
    plan = sinkhorn(-cost, eps, ITERATIONS, RESIDUAL, a, b).plan
    divergence = entropic_wasserstein(x, y, eps, 2, a, b, iterations=ITERATIONS, tol=RESIDUAL)
    return {"eps": eps, "distance": _distance(plan, cost), "debiased": round(float(divergence), 6)}


def _distance(plan: Tensor, cost: Tensor) -> float:
    return round(math.sqrt(max(0.0, float((plan * cost).sum()))), 6)


def _exact_distance(x: Tensor, y: Tensor) -> float | None:
    """The exact distance; None if the package for it is not installed."""
    from regard.wasserstein import exact_wasserstein

    try:
        return round(float(exact_wasserstein(x, y)), 6)
    except ImportError:
        return None


def _normalised(heights: list[float]) -> Tensor:
    """Heights of bars as a distribution; uniform if all are zero."""
    h = torch.tensor(heights, dtype=torch.float64)
    return h / h.sum() if float(h.sum()) > 0 else torch.full_like(h, 1 / len(h))


def assign(request: Batch) -> dict[str, Any]:
    """Assign a batch of directions to prototypes: each to the nearest, and by SwAV's codes."""
    generator = torch.Generator().manual_seed(request.seed)
    centres = torch.rand(4, generator=generator, dtype=torch.float64) * 2 * math.pi
    # Uneven clusters on purpose: by the nearest, most prototypes get no sample.
    cluster = torch.multinomial(torch.tensor([0.6, 0.2, 0.15, 0.05]), request.samples, True, generator=generator)
    angle = centres[cluster] + 0.25 * torch.randn(request.samples, generator=generator, dtype=torch.float64)
    directions = torch.rand(request.prototypes, generator=generator, dtype=torch.float64) * 2 * math.pi
    order = angle.remainder(2 * math.pi).argsort()
    angle, directions = angle[order].remainder(2 * math.pi), directions.sort().values
    scores = torch.cos(angle[:, None] - directions)
    transport = sinkhorn(scores, request.eps, request.iterations)
    nearest = torch.nn.functional.one_hot(scores.argmax(1), request.prototypes).double().mean(0)
    codes = transport.weights
    return {
        "samples": rounded(angle),
        "prototypes": rounded(directions),
        "scores": rounded(scores),
        "codes": rounded(codes),
        "shares": rounded(codes.mean(0)),
        "nearest": rounded(nearest),
        "residual": float(transport.residual),
        "iterations": transport.iterations,
        "converged": bool(transport.converged),
    }
