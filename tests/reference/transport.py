"""Slow, obvious twins of Sinkhorn's algorithm and of the Wasserstein distances."""

from itertools import permutations

import torch
from torch import Tensor


def published_loop(s: Tensor, eps: float, iterations: int) -> Tensor:
    """The plan of SwAV's published loop, (B, K), in float64: the whole matrix is rescaled, prototypes first."""
    q = ((s.double() - s.double().max()) / eps).exp()
    q = q / q.sum()
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True) / q.shape[1]
        q = q / q.sum(1, keepdim=True) / q.shape[0]
    return q


def log_plan(s: Tensor, eps: float, iterations: int, a: Tensor, b: Tensor) -> Tensor:
    """The same in the log domain and for any positive marginals, differentiable by autograd."""
    f = torch.zeros_like(a)
    for _ in range(iterations):
        g = eps * (b.log() - ((s + f[..., :, None]) / eps).logsumexp(-2))
        f = eps * (a.log() - ((s + g[..., None, :]) / eps).logsumexp(-1))
    return ((s + f[..., :, None] + g[..., None, :]) / eps).exp()


def assignment_wasserstein(x: Tensor, y: Tensor, p: float) -> float:
    """Distance between two sets of equally many points by trying every assignment."""
    cost = torch.cdist(x, y) ** p
    n = len(x)
    return min(float(cost[range(n), list(order)].mean()) for order in permutations(range(n))) ** (1 / p)


def quantile_wasserstein(x: Tensor, y: Tensor, wx: Tensor, wy: Tensor, p: float, grid: int = 200_000) -> float:
    """Distance on the line as the integral over t of |F^-1(t) - G^-1(t)|^p, by a fine midpoint rule."""
    t = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid

    def quantiles(z: Tensor, w: Tensor) -> Tensor:
        order = z.argsort()
        steps = w[order].cumsum(0)
        return z[order][torch.searchsorted(steps, t).clamp(max=len(z) - 1)]

    return float((quantiles(x, wx) - quantiles(y, wy)).abs().pow(p).mean() ** (1 / p))


def bures_squared(m1: Tensor, c1: Tensor, m2: Tensor, c2: Tensor) -> float:
    """The squared distance of two Gaussians from the textbook formula, with matrix roots by eigenvalues."""

    def root(c: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(c)
        return vectors * values.clamp(min=0).sqrt() @ vectors.T

    cross = root(root(c1) @ c2 @ root(c1))
    return float(((m1 - m2) ** 2).sum() + torch.trace(c1 + c2 - 2 * cross))


def attention(scores: Tensor, v: Tensor, weights: str) -> Tensor:
    """Attention with a score matrix that is there in full."""
    p = {
        "softmax": lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
        "inverse": lambda s: (1 / (1 - s)) / (1 / (1 - s)).sum(-1, keepdim=True),
        "gate": lambda s: 1 / (1 + (-s).exp()),
    }[weights](scores)
    return p @ v
