"""Weighted expectation-maximisation for Gaussian mixtures, in the log domain: equations (5.23) to (5.26).

Legend: (...) batch, of restarts and examples alike; K components, L locations, d dimensions. All in float64 and
with the origin in the middle of the locations, so that moments can be products with [1, t, t t'], in fewer passes than
sums over centred locations, without loss of precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.continuous import _small
from regard.continuous.locations import Locations
from regard.continuous.moments import moments

# Log mixing weight of a component that does not take part: its exp is zero, and sums with it stay finite.
ABSENT = -1e30
# Mass below which a component counts as empty; added to denominators.
_EMPTY = 1e-30


class Components(NamedTuple):
    """The parameters of a mixture: log mixing weights (..., K), means (..., K, d), covariances (..., K, d, d)."""

    log_mixing: Tensor
    mean: Tensor
    covariance: Tensor

    def pick(self, index: Tensor) -> Components:
        """Along the first axis, the entry index[...] for each example."""
        return Components(*(torch.take_along_dim(x, _like(index, x), 0).squeeze(0) for x in self))


def _like(index: Tensor, x: Tensor) -> Tensor:
    return index.reshape(1, *index.shape, *[1] * (x.dim() - 1 - index.dim()))


def features(where: Locations) -> Tensor:
    """1, t and t t' of each location, (1 + d + d^2, L): a quadratic in t is a product with them."""
    t = where.points
    return torch.cat([torch.ones_like(t[:, :1]), t, (t.unsqueeze(-1) * t.unsqueeze(-2)).flatten(1)], -1).mT.contiguous()


def log_joint(state: Components, where: Locations) -> Tensor:
    """log pi_k + E[log N(t; mu_k, Sigma_k)] over each cell, (..., K, L): equation (5.23).

    The variance C inside a cell enters as -tr(Sigma^-1 C) / 2. With it, the M step that adds C to every covariance is
    the exact maximiser, and the likelihood (5.24) never falls.
    """
    inverse, logdet = _small.inverse_and_logdet(state.covariance)
    linear = (inverse @ state.mean.unsqueeze(-1)).squeeze(-1)
    inside = (inverse * where.within).sum((-1, -2)) + (linear * state.mean).sum(-1)
    level = state.log_mixing - 0.5 * (logdet + inside + where.dimensions * math.log(2 * math.pi))
    quadratic = torch.cat([level.unsqueeze(-1), linear, -0.5 * inverse.flatten(-2)], -1)
    return quadratic @ features(where)


def likelihood(w: Tensor, joint: Tensor) -> Tensor:
    """sum_l w_l log sum_k exp(joint_kl), (...): equation (5.24)."""
    return (w * joint.logsumexp(-2)).sum(-1)


def m_step(w: Tensor, gamma: Tensor, where: Locations, present: Tensor | None = None) -> Components:
    """Mixing weight, mean and covariance of each component: equation (5.26).

    `w`: weights of the locations, (..., L).
    `gamma`: responsibilities, (..., K, L).
    `where`: the L locations.
    `present`: boolean (..., K), False for components that take no part; default None, all do.

    An empty component falls back on the moments of all the weights: nothing is divided by zero.
    """
    d = where.dimensions
    sums = (w.unsqueeze(-2) * gamma) @ features(where).mT
    totals = sums.sum(-2, keepdim=True)
    mass = sums[..., :1]
    # A row without any weight has a total of zero: then the denominator is _EMPTY, and the average zero.
    average = (sums + _EMPTY * totals) / (mass + _EMPTY * (totals[..., :1] + (totals[..., :1] == 0)))
    mean, second = average[..., 1 : 1 + d], _small.matrices(average[..., 1 + d :])
    covariance = second - mean.unsqueeze(-1) * mean.unsqueeze(-2) + where.within
    log_mixing = (mass.squeeze(-1) + _EMPTY).log()
    if present is not None:
        log_mixing = torch.where(present, log_mixing, ABSENT)
    return Components(log_mixing, mean, covariance)


def iterate(w: Tensor, state: Components, where: Locations, iterations: int) -> Components:
    """`iterations` E and M steps on weights `w` (..., L) from `state`, unrolled: gradients flow through all of them."""
    present = state.log_mixing > ABSENT / 2
    for _ in range(iterations):
        state = m_step(w, log_joint(state, where).softmax(-2), where, present)
    return state


def by_regions(w: Tensor, where: Locations, components: int, takes_part: Tensor) -> Components:
    """Starts by moment matching in K equal regions of the box: halves, quadrants, or as near to square as K allows.

    `w`: weights, (..., L).
    `where`: the L locations.
    `components`: K.
    `takes_part`: one where a location takes part, else zero, (..., L). A uniform weight of 1e-6 on these keeps the
    component of a region without weight inside its region.
    """
    columns = max(c for c in range(1, math.isqrt(components) + 1) if components % c == 0)
    low = where.points.amin(0) - where.sides / 2
    size = where.points.amax(0) + where.sides / 2 - low
    relative = (where.points - low) / torch.where(size > 0, size, 1)
    if where.dimensions == 1:
        region = (relative[:, 0] * components).long().clamp(0, components - 1)
    else:
        rows = components // columns
        row = (relative[:, 1] * rows).long().clamp(0, rows - 1)
        region = row * columns + (relative[:, 0] * columns).long().clamp(0, columns - 1)
    inside = region == torch.arange(components, device=region.device).unsqueeze(-1)
    uniform = 1e-6 * takes_part / takes_part.sum(-1, keepdim=True).clamp_min(1)
    return m_step(w + uniform, inside.to(w).expand(*w.shape[:-1], -1, -1), where)


def at_random(
    w: Tensor, where: Locations, counts: Tensor, largest: int, generator: torch.Generator | None
) -> Components:
    """S random starts, (S, ..., K).

    Means are locations drawn without replacement by weight (Gumbel top-k), the covariance is that of all the weights,
    mixing weights are equal.

    `w`: weights, (..., L).
    `where`: the L locations.
    `counts`: how many of the K components take part in each start, (S,).
    `largest`: K.
    `generator`: of the random numbers; default torch's own.
    """
    shape = (len(counts), *w.shape)
    uniform = torch.rand(shape, generator=generator, device=w.device, dtype=w.dtype)
    noise = -(-uniform.clamp(1e-20, 1 - 1e-7).log()).log()
    seeds = (noise + w.detach().log().clamp_min(ABSENT)).topk(largest, -1).indices
    _, covariance = moments(w, where)
    present = torch.arange(largest, device=w.device) < counts.unsqueeze(-1)
    log_mixing = torch.where(present, -counts.unsqueeze(-1).to(w).log(), ABSENT)
    log_mixing = log_mixing.reshape(len(counts), *[1] * (w.dim() - 1), largest).expand(*shape[:-1], largest)
    return Components(log_mixing, where.points[seeds], covariance.unsqueeze(-3).expand(*shape[:-1], largest, -1, -1))
