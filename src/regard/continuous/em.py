"""Weighted expectation-maximisation for Gaussian mixtures, in the log domain: equations (5.23) to (5.26).

Legend: (...) batch, of restarts and examples alike; K components, L locations, d dimensions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.continuous import _small
from regard.continuous.locations import Locations
from regard.continuous.moments import moments

# The log mixing weight of a component that does not take part: exp of it is zero, and sums with it stay finite.
ABSENT = -1e30
# The largest exponent that a responsibility over its component's mass may have; float32 overflows at 88.
_LARGEST = 80.0


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


def log_joint(state: Components, where: Locations) -> Tensor:
    """log pi_k + E[log N(t; mu_k, Sigma_k)] over each cell, (..., K, L): equation (5.23).

    The variance C inside a cell enters as -tr(Sigma^-1 C) / 2. With it, the M step that adds C to every covariance is the exact
    maximiser, and the likelihood (5.24) never falls.
    """
    d = where.dimensions
    inverse, logdet = _small.inverse_and_logdet(state.covariance)
    offset = where.points - state.mean.unsqueeze(-2)
    distance = ((offset @ inverse) * offset).sum(-1)
    inside = (inverse * where.within).sum((-1, -2))
    level = state.log_mixing - 0.5 * (logdet + inside + d * math.log(2 * math.pi))
    return level.unsqueeze(-1) - 0.5 * distance


def likelihood(w: Tensor, joint: Tensor) -> Tensor:
    """sum_l w_l log sum_k exp(joint_kl), (...): equation (5.24)."""
    return (w * joint.logsumexp(-2)).sum(-1)


def m_step(w: Tensor, log_gamma: Tensor, where: Locations) -> Components:
    """Mass, mean and covariance of each component for log responsibilities (..., K, L): equation (5.26).

    Responsibilities are divided by the largest share of their own component before they leave the log domain, so that a
    component with next to no mass still has a mean and a covariance, and no division by zero.
    """
    share = w.detach().log().unsqueeze(-2) + log_gamma.detach()
    largest = share.amax(-1, keepdim=True)
    largest = torch.where(largest > -math.inf, largest, log_gamma.detach().amax(-1, keepdim=True))
    q = w.unsqueeze(-2) * (log_gamma - largest).clamp_max(_LARGEST).exp()
    total = q.sum(-1, keepdim=True)
    total = torch.where(total > 0, total, 1)
    return Components((largest + total.log()).squeeze(-1), *moments(q / total, where))


def iterate(w: Tensor, state: Components, where: Locations, iterations: int) -> Components:
    """That many E and M steps from `state`, unrolled: the gradient flows through all of them."""
    for _ in range(iterations):
        joint = log_joint(state, where)
        state = m_step(w, joint - joint.logsumexp(-2, keepdim=True), where)
    return state


def by_regions(w: Tensor, where: Locations, components: int, takes_part: Tensor) -> Components:
    """Moment matching in equal parts of the box: halves, quadrants, otherwise as near to a square array as K allows.

    A breath of uniform weight keeps a region without any weight where it is.
    """
    columns = max(c for c in range(1, math.isqrt(components) + 1) if components % c == 0)
    low = where.points.amin(0) - where.sides / 2
    size = where.points.amax(0) + where.sides / 2 - low
    place = (where.points - low) / torch.where(size > 0, size, 1)
    if where.dimensions == 1:
        region = (place[:, 0] * components).long().clamp(0, components - 1)
    else:
        rows = components // columns
        row = (place[:, 1] * rows).long().clamp(0, rows - 1)
        region = row * columns + (place[:, 0] * columns).long().clamp(0, columns - 1)
    inside = region == torch.arange(components, device=region.device).unsqueeze(-1)
    log_gamma = torch.where(inside, 0.0, -1e4).to(w).expand(*w.shape[:-1], -1, -1)
    breath = 1e-6 * takes_part / takes_part.sum(-1, keepdim=True).clamp_min(1)
    return m_step(w + breath, log_gamma, where)


def at_random(
    w: Tensor, where: Locations, counts: Tensor, largest: int, generator: torch.Generator | None
) -> Components:
    """Random starts, one for each entry of counts (S,): (S, ..., K) with counts[s] components that take part, K the largest.

    Means are locations drawn without replacement by weight (Gumbel's trick), covariances that of all the weights, mixing equal.
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
