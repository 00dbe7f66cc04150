"""Fitting mixtures to discrete weights, and choosing how many components.

Legend: (...) batch of examples, L locations, K components, S starts.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from regard import _check
from regard.continuous import em
from regard.continuous.locations import Locations, as_locations, working_dtype
from regard.continuous.mixture import Mixture
from regard.continuous.moments import density_of, prepare
from regard.maps.entmax import sparsemax

Mixing = Literal["em", "sparsemax"]
Criterion = Literal["components", "parameters", "aic", "bic"]


def fit_mixture(
    weights: Tensor,
    locations: Locations | Tensor,
    components: int = 2,
    iterations: int = 5,
    init: Literal["regions", "random"] | Mixture = "regions",
    *,
    restarts: int = 1,
    alpha: float = 1,
    mixing: Mixing = "em",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Mixture:
    """A mixture of K densities by weighted EM: equations (5.22) to (5.26).

    `weights`: (..., L), nonnegative; divided by their sum.
    `locations`: where they are, L of them; an (L, d) tensor is taken as bare points.
    `components`: K; default 2.
    `iterations`: of EM, a fixed number, unrolled; default 5.
    `init`: the start: "regions" (default), moment matching in halves, quadrants, ...; "random", means drawn by weight;
    or a Mixture.
    `restarts`: random starts, of which each example keeps the one with the highest likelihood; default 1.
    `alpha`: family of the components, which keep their moments: 1 (Gaussian), 2 (paraboloid) or any number between 1
    and 3; default 1.
    `mixing`: "em" (default), or "sparsemax", which replaces the mixing weights by sparsemax of their logarithms: a
    component with less than about a third of the largest one's mass is dropped, so that the number of modes varies.
    `mask`: as in `match_moments`.
    `generator`: of the random starts; default torch's own.

    Differentiable in the weights, through all iterations. A component that loses its mass keeps a finite mean and
    covariance, and its gradient goes to zero with it.

    >>> from regard.continuous import line
    >>> mix = fit_mixture(torch.tensor([[0.5, 0.0, 0.0, 0.5]]), line(4))
    >>> mix.parts.mean.flatten().tolist(), mix.mixing.tolist()
    ([0.125, 0.875], [[0.5, 0.5]])
    """
    where = as_locations(locations)
    w = prepare(weights, where, mask).double()
    where, middle = where.to(w).centred(), where.to(w).middle
    _check.count("components", components)
    _check.count("iterations", iterations, at_least=0)
    _check.count("restarts", restarts)
    if restarts > 1 and init != "random":
        _check.complain("restarts", restarts, 'one, unless init="random"', "There is nothing to draw again.")
    if isinstance(init, Mixture):
        start = _start_from(init, w, components, where.dimensions, middle)
    else:
        _check.choice("init", init, ("regions", "random"))
        _check_enough(components, where)
        if init == "regions":
            start = em.by_regions(w, where, components, _takes_part(w, mask))
        else:
            counts = torch.full((restarts,), components, device=w.device)
            start = em.at_random(w, where, counts, components, generator)
            start = start.pick(_likelihoods(w, start, where, iterations, [components] * restarts).argmax(0))
    found = _shifted(em.iterate(w, start, where, iterations), w, middle, iterations)
    return _mixture(found, alpha, mixing, weights.dtype)


def select_mixture(
    weights: Tensor,
    locations: Locations | Tensor,
    max_components: int = 5,
    restarts: int = 3,
    penalty: float = 0.1,
    *,
    criterion: Criterion = "components",
    iterations: int = 20,
    alpha: float = 1,
    mixing: Mixing = "em",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Mixture:
    """The mixture with the number of components that minimises -2 logL + P(K), for each example: equation (5.27).

    Every K up to `max_components` and every restart is fitted to all examples at once, without gradient; the best start
    of each example is then fitted again with gradient. `mix.components` is the K of each example; components beyond it
    have a mixing weight of zero. logL is the weighted likelihood (5.24), a mean over the weights, not a sum over L.

    `weights`: (..., L), nonnegative; divided by their sum.
    `locations`: where they are, L of them; an (L, d) tensor is taken as bare points.
    `max_components`: the largest K; default 5.
    `restarts`: random starts for each K above one; default 3.
    `penalty`: per component or parameter, per unit of weight; default 0.1. "aic" and "bic" do not use it.
    `criterion`: "components" (default), P = penalty K (the thesis); "parameters", P = penalty (K (1 + d (d + 3) / 2) -
    1); "aic" and "bic", P = 2 / n or log(n) / n times that number of parameters, with n = (sum w)^2 / sum w^2 the
    effective number of observations, at least e. With equal weights these are the textbook's, divided by n.
    `iterations`: of EM; default 20.
    `alpha`, `mixing`, `mask`, `generator`: as in `fit_mixture`.

    >>> from regard.continuous import grid
    >>> w = torch.zeros(1, 14, 14); w[0, 2:4, 2:4] = 1; w[0, 10:12, 9:11] = 1
    >>> select_mixture(w.flatten(1), grid(14, 14), generator=torch.Generator().manual_seed(0)).components
    tensor([2])
    """
    where = as_locations(locations)
    w = prepare(weights, where, mask).double()
    where, middle = where.to(w).centred(), where.to(w).middle
    _check.count("max_components", max_components)
    _check.count("restarts", restarts)
    _check.count("iterations", iterations, at_least=1)
    _check.number("penalty", penalty, at_least=0)
    _check.choice("criterion", criterion, ("components", "parameters", "aic", "bic"))
    _check_enough(max_components, where)
    # One start for K = 1, where EM has one solution.
    numbers = [1] + [k for k in range(2, max_components + 1) for _ in range(restarts)]
    counts = torch.tensor(numbers, device=w.device)
    start = em.at_random(w, where, counts, max_components, generator)
    score = -2 * _likelihoods(w, start, where, iterations, numbers)
    complexity = _complexity(w.detach(), counts, where.dimensions, penalty, criterion)
    # Fits that tie but for rounding go to the smaller K, which comes first.
    tie = 1e-6 * counts.reshape(-1, *[1] * (w.dim() - 1))
    chosen = (score + complexity + tie).argmin(0)
    found = _shifted(em.iterate(w, start.pick(chosen), where, iterations), w, middle, iterations)
    return _mixture(found, alpha, mixing, weights.dtype)


def log_likelihood(
    mixture: Mixture, weights: Tensor, locations: Locations | Tensor, mask: Tensor | None = None
) -> Tensor:
    """The weighted log-likelihood that EM maximises, (...): equation (5.24), for the Gaussians with these moments.

    `mixture`: batch shape (...).
    `weights`: (..., L), nonnegative; divided by their sum.
    `locations`: where they are; each cell counts with the mean of its log-density.
    `mask`: as in `match_moments`.

    Differentiable.

    >>> from regard.continuous import line
    >>> w = torch.tensor([0.7, 0.1, 0.1, 0.1])
    >>> fits = [fit_mixture(w, line(4), iterations=n) for n in range(4)]
    >>> [bool(log_likelihood(b, w, line(4)) >= log_likelihood(a, w, line(4))) for a, b in zip(fits, fits[1:])]
    [True, True, True]
    """
    where = as_locations(locations)
    w = prepare(weights, where, mask).double()
    where, middle = where.to(w).centred(), where.to(w).middle
    logs, mean, covariance = (x.double() for x in _components(mixture))
    state = em.Components(logs, mean - middle, covariance)
    return em.likelihood(w, em.log_joint(state, where)).to(mixture.mean.dtype)


def _complexity(w: Tensor, counts: Tensor, dimensions: int, penalty: float, criterion: Criterion) -> Tensor:
    """P(K) of equation (5.27) for each start, (S, ...)."""
    k = counts.reshape(-1, *[1] * (w.dim() - 1)).to(w)
    if criterion == "components":
        return penalty * k
    parameters = k * (1 + dimensions * (dimensions + 3) / 2) - 1
    if criterion == "parameters":
        return penalty * parameters
    n = w.square().sum(-1).clamp_min(torch.finfo(w.dtype).tiny).reciprocal().clamp_min(math.e)
    return parameters * (2 / n if criterion == "aic" else n.log() / n)


def _likelihoods(w: Tensor, start: em.Components, where: Locations, iterations: int, numbers: list[int]) -> Tensor:
    """The likelihood after EM from each start, (S, ...), where start s has numbers[s] components.

    One start of all examples at a time, and without the components that take no part: the working set then fits the
    processor's cache, which is faster than one long batch.
    """
    likelihoods = []
    with torch.no_grad():
        for s, k in enumerate(numbers):
            state = em.Components(
                start.log_mixing[s, ..., :k], start.mean[s, ..., :k, :], start.covariance[s, ..., :k, :, :]
            )
            likelihoods.append(em.likelihood(w, em.log_joint(em.iterate(w, state, where, iterations), where)))
    return torch.stack(likelihoods)


def _mixture(state: em.Components, alpha: float, mixing: Mixing, dtype: torch.dtype) -> Mixture:
    _check.choice("mixing", mixing, ("em", "sparsemax"))
    share = state.log_mixing.softmax(-1) if mixing == "em" else sparsemax(state.log_mixing)
    dtype = working_dtype(dtype)
    return Mixture(share.to(dtype), density_of(state.mean.to(dtype), state.covariance.to(dtype), alpha))


def _components(mixture: Mixture) -> em.Components:
    absent = mixture.mixing == 0
    logs = mixture.mixing.masked_fill(absent, 1).log().masked_fill(absent, em.ABSENT)
    return em.Components(logs, mixture.parts.mean, mixture.parts.covariance)


def _shifted(state: em.Components, w: Tensor, middle: Tensor, iterations: int) -> em.Components:
    """The components with the caller's origin; an M step makes the means of a row without any weight zero."""
    if iterations > 0:
        middle = torch.where((w.sum(-1) > 0)[..., None, None], middle, 0.0)
    return state._replace(mean=state.mean + middle)


def _start_from(init: Mixture, w: Tensor, components: int, dimensions: int, middle: Tensor) -> em.Components:
    """The parameters of a mixture that the caller passed, if it has the right shape, with the origin in `middle`."""
    expected = (*w.shape[:-1], components, dimensions)
    if init.parts.mean.shape != expected:
        got = f"a mixture with means of shape {tuple(init.parts.mean.shape)}"
        _check.complain("init", got, f"{expected}: batch, components, dimensions", "Expand it.")
    logs, mean, covariance = (x.to(w) for x in _components(init))
    return em.Components(logs, mean - middle, covariance)


def _takes_part(w: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones_like(w) if mask is None else mask.to(w).expand_as(w)


def _check_enough(components: int, where: Locations) -> None:
    """There are at least as many locations as components."""
    if components > len(where):
        _check.complain("components", components, f"at most {len(where)}, the locations", "Ask for fewer.")
