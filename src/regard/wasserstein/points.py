"""Wasserstein distances between sets of points in space: sliced, entropic and exact."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from regard import _check
from regard._install import install_extra
from regard._once import once
from regard.maps.sinkhorn import sinkhorn
from regard.wasserstein._root import as_pairs, computed, lined_up, mass, norm_between, root, same_last
from regard.wasserstein.line import wasserstein_1d


def sliced_wasserstein(
    x: Tensor,
    y: Tensor,
    directions: int | Tensor = 64,
    p: float = 2,
    pairwise: bool = False,
    generator: torch.Generator | None = None,
    x_weights: Tensor | None = None,
    y_weights: Tensor | None = None,
) -> Tensor:
    """Sliced Wasserstein distance: the mean, over directions, of that between the projections of two sets of points.

    The distance is (6.17) in docs/math.md: the p-th root of the mean of p-th powers.

    `x`: points, (..., n, d).
    `y`: points, (..., m, d).
    `directions`: a number of random unit vectors, or the vectors themselves, (d, D), in columns; default 64.
    `p`: order; default 2.
    `pairwise`: all pairs, (..., Lq, n, d) against (..., Lk, m, d); default False.
    `generator`: of the random directions; default torch's own.
    `x_weights`, `y_weights`: (..., n) and (..., m), sum to one; default uniform.

    Returns (...), or (..., Lq, Lk) with `pairwise`. Differentiable in points and weights, closed form for a fixed
    order; at distance zero the gradient is zero.

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> sliced_wasserstein(x, x + torch.tensor([3.0, 0.0]), directions=torch.eye(2), p=1)
    tensor(1.5000)
    """
    (x, y), dtype = _points(x, y, pairwise)
    p = _check.number("p", p, at_least=1)
    d = x.shape[-1]
    if not isinstance(directions, Tensor):
        count = _check.count("directions", directions)
        draw = torch.randn(d, count, generator=generator, dtype=x.dtype, device=x.device)
        directions = torch.nn.functional.normalize(draw, dim=0)
    if directions.dim() != 2 or directions.shape[0] != d:
        _check.complain("directions", f"shape {tuple(directions.shape)}", f"({d}, D)", "One direction per column.")
    directions = directions.to(x.dtype)
    lines_x, lines_y = (x @ directions).mT, (y @ directions).mT  # projections, (..., D, n) and (..., D, m)
    if x_weights is None and y_weights is None and x.shape[-2] == y.shape[-2]:
        sorted_x, sorted_y = (z.sort(dim=-1, stable=True).values.flatten(-2) for z in (lines_x, lines_y))
        norm = norm_between(sorted_x, sorted_y, p, pairwise)
        return (norm / math.pow(sorted_x.shape[-1], 1 / p)).to(dtype)
    # The same weights for every direction.
    a, b = (
        _weights(f"{name}_weights", w, z).unsqueeze(-2) for name, w, z in (("x", x_weights, x), ("y", y_weights, y))
    )
    lines_x, lines_y = as_pairs(lines_x, lines_y, pairwise, 2)
    a, b = as_pairs(a, b, pairwise, 2)
    distances = wasserstein_1d(lines_x, lines_y, p, a, b)
    norm = norm_between(distances, torch.zeros_like(distances), p, False)
    return (norm / math.pow(distances.shape[-1], 1 / p)).to(dtype)


def entropic_wasserstein(
    x: Tensor,
    y: Tensor,
    eps: float = 0.05,
    p: float = 2,
    x_weights: Tensor | None = None,
    y_weights: Tensor | None = None,
    pairwise: bool = False,
    debiased: bool = True,
    iterations: int = 1000,
    tol: float | None = None,
) -> Tensor:
    """Entropic Wasserstein distance: the p-th root of the Sinkhorn divergence between two sets of points.

    The cost is the p-th power of the Euclidean distance.

    `x`: points, (..., n, d).
    `y`: points, (..., m, d).
    `eps`: weight of the entropy, in units of the cost; default 0.05.
    `p`: order; default 2.
    `x_weights`, `y_weights`: (..., n) and (..., m), sum to one; default uniform.
    `pairwise`: all pairs, (..., Lq, n, d) against (..., Lk, m, d), one batch of Sinkhorn problems; default False.
    `debiased`: True (default) is (6.19) in docs/math.md, zero between equal sets; False the root of the cost <P, C> of
    the entropic plan (6.18).
    `iterations`: of Sinkhorn, at most; default 1000.
    `tol`: residual of the marginals at which Sinkhorn stops; default 1e-9 in float64, else 1e-5.

    Returns (...), or (..., Lq, Lk) with `pairwise`. Differentiable in points and weights: debiased once, by the
    envelope theorem with a fixed plan; otherwise implicitly, through the plan. At distance zero the gradient is zero.

    >>> x = torch.tensor([[0.0], [1.0]])
    >>> entropic_wasserstein(x, x + 2)
    tensor(2.0000)
    """
    (x, y), dtype = _points(x, y, pairwise)
    p = _check.number("p", p, at_least=1)
    tol = (1e-9 if x.dtype == torch.float64 else 1e-5) if tol is None else tol
    a, b = _weights("x_weights", x_weights, x), _weights("y_weights", y_weights, y)
    settings = eps, p, iterations, tol
    ax, by = as_pairs(a, b, pairwise, 1)
    px, py = as_pairs(x, y, pairwise, 2)
    if not debiased:
        cost = _cost(px, py, p)
        plan = sinkhorn(-cost, eps, iterations, tol, _full(ax, cost, -2), _full(by, cost, -1), gradient="implicit").plan
        return root((plan * cost).sum((-2, -1)), p).to(dtype)
    self_costs = _entropic_cost(x, x, a, a, *settings), _entropic_cost(y, y, b, b, *settings)
    self_x, self_y = as_pairs(*self_costs, pairwise, 0)
    divergence = _entropic_cost(px, py, ax, by, *settings) - (self_x + self_y) / 2
    return root(divergence, p).to(dtype)


def exact_wasserstein(
    x: Tensor,
    y: Tensor,
    p: float = 2,
    x_weights: Tensor | None = None,
    y_weights: Tensor | None = None,
    pairwise: bool = False,
) -> Tensor:
    """Wasserstein distance of order `p` >= 1 between sets of points, exactly, by the network simplex method.

    The problem is (6.10) in docs/math.md. Needs the package POT (the extra `transport`); it runs on the CPU,
    one problem after another.

    `x`: points, (..., n, d).
    `y`: points, (..., m, d).
    `p`: order; default 2.
    `x_weights`, `y_weights`: (..., n) and (..., m), sum to one; default uniform.
    `pairwise`: all pairs, (..., Lq, n, d) against (..., Lk, m, d); default False.

    Returns (...), or (..., Lq, Lk) with `pairwise`. Differentiable once in points and weights, by the envelope theorem
    with fixed plan and dual; at distance zero the gradient is zero.

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> exact_wasserstein(x, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor(1.)
    """
    ot = _pot()
    (x, y), dtype = _points(x, y, pairwise)
    p = _check.number("p", p, at_least=1)
    a, b = _weights("x_weights", x_weights, x), _weights("y_weights", y_weights, y)
    x, y, a, b = (once(z, "exact_wasserstein") for z in (x, y, a, b))
    a, b = as_pairs(a, b, pairwise, 1)
    cost = _cost(*as_pairs(x, y, pairwise, 2), p)
    a, b = _full(a, cost, -2), _full(b, cost, -1)
    if cost.numel() == 0:  # no problem to solve
        return cost.sum((-2, -1)).to(dtype)
    n, m = cost.shape[-2:]
    problems = zip(
        a.detach().reshape(-1, n).double().cpu().numpy(),
        b.detach().reshape(-1, m).double().cpu().numpy(),
        cost.detach().reshape(-1, n, m).double().cpu().numpy(),
        strict=True,
    )
    plans, fs, gs = [], [], []
    for mass_x, mass_y, costs in problems:
        # The network simplex needs sums that agree to the last digit.
        plan, log = ot.emd(mass_x / mass_x.sum(), mass_y / mass_y.sum(), costs, numItermax=10**7, log=True)
        plans.append(torch.from_numpy(plan))
        fs.append(torch.from_numpy(log["u"]))
        gs.append(torch.from_numpy(log["v"]))
    plan = torch.stack(plans).to(cost).reshape(cost.shape)
    f, g = torch.stack(fs).to(cost).reshape(a.shape), torch.stack(gs).to(cost).reshape(b.shape)
    value = (plan * cost).sum((-2, -1)) + _only_gradient((f * a).sum(-1) + (g * b).sum(-1))
    return root(value, p).to(dtype)


def _entropic_cost(
    x: Tensor, y: Tensor, a: Tensor, b: Tensor, eps: float, p: float, iterations: int, tol: float
) -> Tensor:
    """The optimal value (6.18) of the entropic problem, with gradients by the envelope theorem."""
    x, y, a, b = (once(z, "entropic_wasserstein") for z in (x, y, a, b))
    cost = _cost(x, y, p)
    a, b = _full(a, cost, -2), _full(b, cost, -1)
    result = sinkhorn(-cost.detach(), eps, iterations, tol, a.detach(), b.detach())
    f, g = (
        torch.where(w > 0, potential - eps * torch.where(w > 0, w, 1).log(), 0).detach()
        for potential, w in zip(result.potentials, (a, b), strict=True)
    )
    value = (f * a).sum(-1) + (g * b).sum(-1)
    return value + _only_gradient((result.plan * cost).sum((-2, -1)))


def _only_gradient(x: Tensor) -> Tensor:
    """Zero, with the gradient of x."""
    return x - x.detach()


def _cost(x: Tensor, y: Tensor, p: float) -> Tensor:
    """|x - y|^p for all pairs of points."""
    distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return distance if p == 1 else distance**p


def _full(weights: Tensor, cost: Tensor, axis: int) -> Tensor:
    return weights.expand(*cost.shape[:-2], cost.shape[axis])


def _points(x: Tensor, y: Tensor, pairwise: bool) -> tuple[list[Tensor], torch.dtype]:
    points, dtype = computed(x=x, y=y)
    lined_up("x", x, "y", y, pairwise, 2)
    same_last("x", x, "y", y)
    _check.finite("x", x)
    _check.finite("y", y)
    return points, dtype


def _weights(argument: str, weights: Tensor | None, x: Tensor) -> Tensor:
    if weights is None:
        return x.new_full((), 1 / x.shape[-2]).expand(x.shape[:-1])
    _check.floating(argument, weights, min_dims=1)
    _check.broadcasts(argument, weights, x.shape[:-1], "its points, without the last axis:")
    mass(argument, weights)
    return weights.to(x.dtype).expand(x.shape[:-1])


def _pot() -> Any:
    try:
        return importlib.import_module("ot")
    except ImportError as error:
        raise ImportError(f"exact_wasserstein needs the package POT: {install_extra('transport')}") from error
