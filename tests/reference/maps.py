"""Maps and losses from their definitions: sorts, bisection, loops."""

import math

import mpmath
import torch
from torch import Tensor


def softmax(s: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp(s) over its sum, along the last axis; masked entries are left out, empty rows are zero."""
    weights = torch.exp(s - s.amax(-1, keepdim=True))
    if mask is not None:
        kept = torch.where(mask, s, -math.inf)
        top = kept.amax(-1, keepdim=True)
        weights = torch.where(mask, torch.exp(torch.where(mask, s, 0.0) - torch.where(top > -math.inf, top, 0.0)), 0.0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)


def sparsemax(s: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sort, find how many of the largest scores stay above the threshold, subtract it."""
    if mask is not None:
        top = torch.where(mask, s.detach(), -math.inf).amax(-1, keepdim=True)
        s = torch.where(
            mask, s, torch.where(top > -math.inf, top, 0.0) - 2
        )  # the threshold is at most one below the top
    ordered = s.sort(-1, descending=True).values
    counts = torch.arange(1, s.shape[-1] + 1, dtype=s.dtype)
    sums = ordered.cumsum(-1)
    size = (1 + counts * ordered > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, size - 1) - 1) / size
    p = (s - tau).clamp(min=0)
    return p if mask is None else torch.where(mask & mask.any(-1, keepdim=True), p, 0.0)


def entmax(s: Tensor, alpha: float = 1.5, mask: Tensor | None = None) -> Tensor:
    """Bisection on the threshold, differentiated by the implicit function theorem through one more Newton step."""
    if alpha == 1:
        return softmax(s, mask)
    if alpha == 2:
        return sparsemax(s, mask)
    if alpha < 1:
        return dense_entmax(s, alpha)
    part = torch.ones_like(s, dtype=torch.bool) if mask is None else mask.expand(s.shape)
    alive = part.any(-1, keepdim=True)
    z = (alpha - 1) * torch.where(part, s, -1e30)
    z = z - torch.where(alive, z.detach().amax(-1, keepdim=True), 0.0)
    low, high = -torch.ones_like(z[..., :1]), torch.zeros_like(z[..., :1])
    for _ in range(100):
        middle = (low + high) / 2
        above = ((z.detach() - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    support = (z.detach() > low) & alive
    u = torch.where(support, z - low, 1.0)
    slopes = torch.where(support, u.detach() ** (1 / (alpha - 1) - 1), 0.0)
    excess = (torch.where(support, u, 0.0) * slopes).sum(-1, keepdim=True)
    shift = (excess - excess.detach()) / slopes.sum(-1, keepdim=True).clamp(min=1e-300)
    p = torch.where(support, torch.where(support, u - shift, 1.0) ** (1 / (alpha - 1)), 0.0)
    return p / p.detach().sum(-1, keepdim=True).clamp(min=1e-300)


def dense_entmax(s: Tensor, alpha: float) -> Tensor:
    """Below alpha = 1: p = (tau + (1 - alpha) (max s - s))^(-1 / (1 - alpha)), with bisection on tau >= 1."""
    below = (1 - alpha) * (s.amax(-1, keepdim=True) - s)
    low = torch.ones_like(s[..., :1])
    high = s.shape[-1] ** (1 - alpha) * low
    for _ in range(200):
        middle = (low + high) / 2
        above = ((middle + below) ** (-1 / (1 - alpha))).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + below) ** (-1 / (1 - alpha))


def normmax(s: Tensor, alpha: float) -> Tensor:
    """Bisection on tau until u = [s - tau]_+^(1 / (alpha - 1)) has norm one; then u over its sum."""
    high = s.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        u = (s - middle).clamp(min=0) ** (1 / (alpha - 1))
        above = (u**alpha).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    u = (s - low).clamp(min=0) ** (1 / (alpha - 1))
    return u / u.sum(-1, keepdim=True)


def budget_sparsemax(s: Tensor, budget: float) -> Tensor:
    """Bisection on tau until clip(s - tau, 0, 1) sums to the budget."""
    low, high = s.amin(-1, keepdim=True) - 1, s.amax(-1, keepdim=True)
    for _ in range(200):
        middle = (low + high) / 2
        above = (s - middle).clamp(0, 1).sum(-1, keepdim=True) > budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (s - high).clamp(0, 1)


def mean(s: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores over the number of entries that take part."""
    if mask is None:
        return s / s.shape[-1]
    return torch.where(mask, s, 0.0) / mask.expand(s.shape).sum(-1, keepdim=True).clamp(min=1)


def tsallis(p: Tensor, alpha: float) -> Tensor:
    """Tsallis entropy of order alpha of each row; Shannon's at alpha = 1."""
    if alpha == 1:
        return torch.special.entr(p).sum(-1)
    return (p - p**alpha).sum(-1) / (alpha * (alpha - 1))


def precise_entmax(row: list[float], alpha: float) -> list[float]:
    """Bisection on the threshold with as many digits as a weight of 1e-4 needs, 4 (alpha - 1), and some more."""
    digits = 30 + int(4.5 * alpha)
    with mpmath.workdps(digits):
        scores, delta = [mpmath.mpf(x) for x in row], mpmath.mpf(alpha) - 1
        power, top = 1 / delta, max(scores)

        def weights(tau: mpmath.mpf) -> list[mpmath.mpf]:
            return [(delta * (x - tau)) ** power if x > tau else mpmath.mpf(0) for x in scores]

        low, high = top - power, top
        for _ in range(int(3.4 * digits)):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
        return [float(p) for p in weights(low)]
