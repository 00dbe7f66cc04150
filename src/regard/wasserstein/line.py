"""Wasserstein distances on the line, where the optimal plan is monotone: sorted samples are matched in order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.wasserstein._root import as_pairs, computed, lined_up, mass, norm_between, power_mean, same_last


def wasserstein_1d(
    x: Tensor,
    y: Tensor,
    p: float = 1,
    x_weights: Tensor | None = None,
    y_weights: Tensor | None = None,
    pairwise: bool = False,
) -> Tensor:
    """Wasserstein distance of order `p` >= 1 between samples on the line.

    The distance is (6.15) in docs/math.md: the p-norm of the difference of the quantile functions.

    `x`: samples, (..., n), in any order.
    `y`: samples, (..., m), in any order.
    `p`: order; default 1.
    `x_weights`, `y_weights`: broadcast to `x` and `y`, sum to one; default uniform.
    `pairwise`: all pairs, (..., Lq, n) against (..., Lk, m); default False.

    Returns (...), or (..., Lq, Lk) with `pairwise`. Differentiable in samples and weights, closed form for a fixed
    order; at distance zero the gradient is zero. Equal numbers of unweighted samples are sorted and subtracted;
    otherwise quantile functions are merged, with n + m numbers in memory per pair.

    >>> wasserstein_1d(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 1.0, 2.0]))
    tensor(1.5000)
    """
    p = _check.number("p", p, at_least=1, remedy="The distance is a metric for p >= 1.")
    (x, y), dtype = computed(x=x, y=y)
    lined_up("x", x, "y", y, pairwise, 1)
    n, m = x.shape[-1], y.shape[-1]
    if x_weights is None and y_weights is None and n == m:
        x, y = (z.sort(dim=-1, stable=True).values for z in (x, y))
        return (norm_between(x, y, p, pairwise) / math.pow(n, 1 / p)).to(dtype)
    x, x_steps = _quantiles(x, _line_weights("x_weights", x_weights, x))
    y, y_steps = _quantiles(y, _line_weights("y_weights", y_weights, y))
    x, y = as_pairs(x, y, pairwise, 1)
    x_steps, y_steps = as_pairs(x_steps, y_steps, pairwise, 1)
    shape = torch.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    x, x_steps, y, y_steps = (z.expand(*shape, z.shape[-1]) for z in (x, x_steps, y, y_steps))
    # Both functions are constant between neighbouring steps of either; the last step of both is at one.
    ends = torch.cat([x_steps, y_steps], -1).sort(-1).values
    starts = torch.cat([torch.zeros_like(ends[..., :1]), ends[..., :-1]], -1)
    middle = ((starts + ends) / 2).detach()
    difference = _at(x, x_steps, middle) - _at(y, y_steps, middle)
    return power_mean(difference, ends - starts, p).to(dtype)


def histogram_wasserstein(
    a: Tensor, b: Tensor, support: Tensor | None = None, p: float = 1, pairwise: bool = False
) -> Tensor:
    """Wasserstein distance of order `p` >= 1 between histograms on one ordered support.

    For p = 1 it is the area between the cumulative distributions (6.16); for p > 1 the quantile functions are merged,
    as in `wasserstein_1d`.

    `a`, `b`: masses of the bins, (..., n), non-negative, that sum to one.
    `support`: positions of the bins, (n,), increasing; default 0, 1, ..., n - 1.
    `p`: order; default 1.
    `pairwise`: all pairs, (..., Lq, n) against (..., Lk, n); default False.

    Returns (...), or (..., Lq, Lk) with `pairwise`. Differentiable in `a`, `b` and `support`, closed form; at distance
    zero the gradient is zero.

    >>> histogram_wasserstein(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5]))
    tensor(1.5000)
    """
    p = _check.number("p", p, at_least=1, remedy="The distance is a metric for p >= 1.")
    (a, b), dtype = computed(a=a, b=b)
    same_last("a", a, "b", b)
    lined_up("a", a, "b", b, pairwise, 1)
    n = a.shape[-1]
    if support is None:
        support = torch.arange(n, dtype=a.dtype, device=a.device)
    _check.floating("support", support)
    if support.shape != (n,):
        _check.complain("support", f"shape {tuple(support.shape)}", f"({n},), one place for each bin", "Match them.")
    _check.finite("support", support)
    support = support.to(a.dtype)
    gaps = support.diff()
    if _check.values_checked(gaps) and not bool((gaps > 0).all()):
        _check.complain("support", "places out of order", "increasing places", "Sort the support and the bins with it.")
    if p > 1:
        return wasserstein_1d(support.expand_as(a), support.expand_as(b), p, a, b, pairwise).to(dtype)
    mass("a", a)
    mass("b", b)
    if n == 1:
        return (norm_between(a, b, 1, pairwise) * 0).to(dtype)
    return norm_between(a.cumsum(-1)[..., :-1] * gaps, b.cumsum(-1)[..., :-1] * gaps, 1, pairwise).to(dtype)


def _line_weights(argument: str, weights: Tensor | None, x: Tensor) -> Tensor:
    if weights is None:
        return x.new_full((), 1 / x.shape[-1]).expand(x.shape)
    _check.floating(argument, weights, min_dims=1)
    _check.broadcasts(argument, weights, x.shape, "its samples")
    weights = weights.to(x.dtype).expand(x.shape)
    mass(argument, weights)
    return weights


def _quantiles(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted samples, and the cumulative weights at which their quantile function steps."""
    x, order = x.sort(dim=-1, stable=True)  # stable: ties keep their order, and so their gradients
    return x, weights.gather(-1, order).cumsum(-1)


def _at(x: Tensor, steps: Tensor, t: Tensor) -> Tensor:
    """The quantile function at t."""
    index = torch.searchsorted(steps.detach().contiguous(), t.contiguous()).clamp_(max=x.shape[-1] - 1)
    return x.gather(-1, index)
