"""Wasserstein distances between distributions: batched, differentiable, each also for all pairs at once."""

from regard.wasserstein.gaussian import bures_w2, factored_w2, gaussian_w2
from regard.wasserstein.line import histogram_wasserstein, wasserstein_1d
from regard.wasserstein.points import entropic_wasserstein, exact_wasserstein, sliced_wasserstein

__all__ = [
    "bures_w2",
    "entropic_wasserstein",
    "exact_wasserstein",
    "factored_w2",
    "gaussian_w2",
    "histogram_wasserstein",
    "sliced_wasserstein",
    "wasserstein_1d",
]
