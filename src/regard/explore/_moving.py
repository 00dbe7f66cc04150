"""Transport for the page: the plan at one eps, the distance as eps goes down, and SwAV's assignment of a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard._rounded import rounded
from regard.explore._asked import Batch, Histograms, Points
from regard.maps.sinkhorn import sinkhorn
from regard.wasserstein import entropic_wasserstein, histogram_wasserstein

LADDER = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002]
ITERATIONS = 300  # iterations of Sinkhorn; the page says when they were not enough
RESIDUAL = 1e-3


def move(asked: Points | Histograms) -> dict[str, Any]:
    """The entropic plan between two point sets or histograms, and the distance for ever smaller eps."""
    if isinstance(asked, Points):
        x, y = (torch.tensor(p, dtype=torch.float64) for p in (asked.x, asked.y))
        a, b = (torch.full((len(p),), 1 / len(p), dtype=torch.float64) for p in (x, y))
        exact = _assigned(x, y)
    else:
        n, m = len(asked.a), len(asked.b)
        x, y = ((torch.arange(k, dtype=torch.float64)[:, None] + 0.5) / k for k in (n, m))
        a, b = (_bar_shares(h) for h in (asked.a, asked.b))
        exact = float(histogram_wasserstein(a, b, x.flatten(), p=2)) if n == m else None
    cost = torch.cdist(x, y).square()
    found = sinkhorn(-cost, asked.eps, ITERATIONS, RESIDUAL, a, b)
    return {
        "plan": rounded(found.plan),
        "distance": _distance(found.plan, cost),
        "residual": float(found.residual),
        "iterations": found.iterations,
        "converged": bool(found.converged),
        "ladder": [_rung(x, y, a, b, cost, eps) for eps in LADDER] if asked.ladder else None,
        "exact": exact,
    }


def _rung(x: Tensor, y: Tensor, a: Tensor, b: Tensor, cost: Tensor, eps: float) -> dict[str, float]:
    """The cost of the entropic plan, and the distance without the bias of the entropy, at one eps."""
    plan = sinkhorn(-cost, eps, ITERATIONS, RESIDUAL, a, b).plan
    divergence = entropic_wasserstein(x, y, eps, 2, a, b, iterations=ITERATIONS, tol=RESIDUAL)
    return {"eps": eps, "distance": _distance(plan, cost), "debiased": round(float(divergence), 6)}


def _distance(plan: Tensor, cost: Tensor) -> float:
    return round(math.sqrt(max(0.0, float((plan * cost).sum()))), 6)


def _assigned(x: Tensor, y: Tensor) -> float | None:
    """The exact distance, where the package for it is installed."""
    from regard.wasserstein import exact_wasserstein

    try:
        return round(float(exact_wasserstein(x, y)), 6)
    except ImportError:
        return None


def _bar_shares(heights: list[float]) -> Tensor:
    """Heights of bars as a distribution; bars without any height count as even."""
    h = torch.tensor(heights, dtype=torch.float64)
    return h / h.sum() if float(h.sum()) > 0 else torch.full_like(h, 1 / len(h))


def assign(asked: Batch) -> dict[str, Any]:
    """Share a batch of directions out between prototypes: by the nearest, and by SwAV's codes."""
    draw = torch.Generator().manual_seed(asked.seed)
    centres = torch.rand(4, generator=draw, dtype=torch.float64) * 2 * math.pi
    # Uneven on purpose: the nearest prototype would leave most of them without a sample.
    cluster = torch.multinomial(torch.tensor([0.6, 0.2, 0.15, 0.05]), asked.samples, True, generator=draw)
    angle = centres[cluster] + 0.25 * torch.randn(asked.samples, generator=draw, dtype=torch.float64)
    towards = torch.rand(asked.prototypes, generator=draw, dtype=torch.float64) * 2 * math.pi
    order = angle.remainder(2 * math.pi).argsort()
    angle, towards = angle[order].remainder(2 * math.pi), towards.sort().values
    scores = torch.cos(angle[:, None] - towards)
    found = sinkhorn(scores, asked.eps, asked.iterations)
    nearest = torch.nn.functional.one_hot(scores.argmax(1), asked.prototypes).double().mean(0)
    codes = found.weights
    return {
        "samples": rounded(angle),
        "prototypes": rounded(towards),
        "scores": rounded(scores),
        "codes": rounded(codes),
        "shares": rounded(codes.mean(0)),
        "nearest": rounded(nearest),
        "residual": float(found.residual),
        "iterations": found.iterations,
        "converged": bool(found.converged),
    }
