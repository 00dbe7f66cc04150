"""Entmax in plain operations of torch, without a branch on values, for exported graphs: torch.export and ONNX."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.maps.entmax.threshold import not_zero

STEPS = 16  # Newton needs at most 11 in practice; a graph cannot stop when it has converged
WRONG = 1e-3  # a row whose weights sum to one less exactly has not converged


def entmax_exported(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """`regard.entmax` for 0 < alpha <= 2 (docs/math.md, 2.4): scores hold -inf where they are masked.

    Alpha 1.5 and 2 are closed forms of the sorted scores, others a fixed number of Newton steps. A row with an alpha
    above two in a tensor, which these do not solve, is NaN. Differentiable in the scores and in a tensor of alphas.
    """
    if not isinstance(alpha, Tensor) and alpha > 2:
        remedy = "Larger ones need a loop that ends when it has converged: run the model in torch."
        _check.complain("alpha", alpha, "at most 2 in an ONNX export", remedy, NotImplementedError)
    s = s.movedim(dim, -1)
    top = s.detach().amax(-1, keepdim=True)
    dead = top == -math.inf
    x = torch.where(dead, 0.0, s - top)
    if isinstance(alpha, Tensor):
        p = _climbed(x, alpha.movedim(dim, -1) - 1)
    else:
        p = _sorted(x, alpha) if alpha in (1.5, 2.0) else _climbed(x, x.new_tensor(alpha - 1))
    return p.masked_fill(dead, 0.0).movedim(-1, dim)


def _sorted(x: Tensor, alpha: float) -> Tensor:
    # The largest is at 0 and the threshold in [-1, 0): an entry below -1 has no weight.
    y = ((alpha - 1) * x).clamp(min=-2.0)
    tau = _threshold(y.sort(-1, descending=True).values, alpha)
    gap = (y - tau).relu()
    if alpha == 1.5:
        # One step of Newton's method restores the digits that sums of squares lost.
        gap = (y - tau - (gap.square().sum(-1, keepdim=True) - 1) / (2 * gap.sum(-1, keepdim=True))).relu()
        gap = gap.square()
    return gap


def _threshold(y: Tensor, alpha: float) -> Tensor:
    """The number that the largest entries exceed by 1 in total, or by 1 in squares; y is sorted."""
    k = torch.arange(1, y.shape[-1] + 1, device=y.device).to(y.dtype)
    mean = y.cumsum(-1) / k
    if alpha == 2:
        tau = mean - 1 / k
    else:
        spread = y.square().cumsum(-1) / k - mean.square()
        tau = mean - (1 / k - spread).clamp(min=0.0).sqrt()
    size = (y > tau).sum(-1, keepdim=True)
    return tau.gather(-1, size - 1)


def _climbed(x: Tensor, delta: Tensor) -> Tensor:
    """Newton's method on the norm of the weights, from a lower bound (docs/math.md, 2.7 to 2.9); x has maximum 0."""
    small = 1e-6 if x.dtype == torch.float32 else 1e-12
    delta = not_zero(delta, small)
    still, rate = x.detach(), delta.detach()
    lam = torch.zeros_like(still[..., :1])
    for _ in range(STEPS):
        lam = lam + _step(*_weights(still, lam, rate), rate).clamp(min=0)
    # A step from the root has the derivative of the root: the steps before it need none.
    lam = lam + _step(*_weights(x, lam, delta), delta)
    p, _ = _weights(x, lam, delta)
    total = p.sum(-1, keepdim=True)
    solved = ((total - 1).abs() < WRONG) & (delta <= 1)
    return torch.where(solved, p / total.clamp(min=torch.finfo(x.dtype).tiny), math.nan)


def _weights(x: Tensor, lam: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """The deformed exponential p of x - lam, and its slope."""
    live = (delta * (x - lam) > -1) & (x > -math.inf)  # below alpha = 1 the first holds for all
    excess = delta * torch.where(live, x - lam, 0.0)
    p = torch.where(live, torch.exp(torch.log1p(excess) / delta), 0.0)
    return p, p / (1 + excess)


def _step(p: Tensor, slope: Tensor, delta: Tensor) -> Tensor:
    total = p.sum(-1, keepdim=True)
    return -total * torch.expm1(-delta * total.log()) / delta / slope.sum(-1, keepdim=True)
