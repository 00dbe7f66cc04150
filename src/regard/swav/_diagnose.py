"""Diagnosis of a run: numbers that show whether it learns, and warnings in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard.swav._queue import world

STUCK = 0.99  # the loss over that of equally likely prototypes, from which on nothing is learned
FEW = 0.1  # share of prototypes in use, below which the clusters collapse
FLAT = 0.05  # rank of the embeddings over their dimension, below which they collapse
UNEVEN = 0.5  # Sinkhorn's residual, above which codes are uneven


@torch.no_grad()
def measure(loss: Tensor, scores: Tensor, code: Tensor, z: Tensor, residual: Tensor) -> dict[str, Any]:
    """Numbers about the state of training from one batch, over all processes; all must call it.

    loss           mean over processes
    code_entropy   mean entropy of a code in nats; ln K is uniform
    shares         share of each prototype in the codes, times K: 1 is equipartition; also share_least, share_most
    used           share of the prototypes that are the nearest of some sample, of the most that could be
    residual       Sinkhorn's
    rank           effective number of dimensions of the embeddings: exp of the entropy of the covariance's spectrum

    `loss`: of the batch.
    `scores`, `code`: (C, B, K).
    `z`: embeddings (C, B, D).
    `residual`: (C,).

    >>> scores, z = torch.randn(2, 8, 4), torch.randn(2, 8, 16)
    >>> even = torch.full((2, 8, 4), 0.25)
    >>> numbers = measure(torch.tensor(1.5), scores, even, z, torch.zeros(2))
    >>> numbers["loss"], numbers["share_least"], round(numbers["code_entropy"], 3)
    (1.5, 1.0, 1.386)
    """
    k = scores.shape[-1]
    code, z = code.flatten(0, -2).float(), z.flatten(0, -2).float()
    nearest = torch.zeros(k, device=z.device).index_add_(
        0, scores.flatten(0, -2).argmax(-1), torch.ones(len(z), device=z.device)
    )
    entropy = -(code * code.clamp(min=1e-30).log()).sum(-1).sum()
    sums = [
        torch.stack([loss.detach().float(), entropy, entropy.new_full((), len(z)), residual.float().mean()]),
        code.sum(0),
        nearest,
        z.sum(0),
        (z.mT @ z).flatten(),
    ]
    flat = torch.cat(sums)
    processes = world()[1]
    if processes > 1:
        dist.all_reduce(flat)
    totals, shares, nearest, z_sum, square = flat.split([len(s) for s in sums])
    count = totals[2]
    mean = z_sum / count
    covariance = square.view(len(mean), -1) / count - torch.outer(mean, mean)
    spectrum = torch.linalg.eigvalsh(covariance.double()).clamp(min=0)
    spectrum = spectrum / spectrum.sum().clamp(min=1e-30)
    rank = torch.exp(-(spectrum * spectrum.clamp(min=1e-30).log()).sum()) if spectrum.sum() > 0 else spectrum.sum()
    shares = shares / count * k
    return {
        "loss": float(totals[0]) / processes,
        "code_entropy": float(totals[1] / count),
        "shares": shares.tolist(),
        "share_least": float(shares.min()),
        "share_most": float(shares.max()),
        "used": float((nearest > 0).sum() / min(k, int(count))),
        "residual": float(totals[3]) / processes,
        "rank": float(rank),
    }


class Watch:
    """From the numbers of `measure` to warnings of collapse in words, with remedies.

    A warning is repeated only if its cause has disappeared in between; there is none in the first `patience` steps.

    >>> watch = Watch(prototypes=30, dim=64, patience=0)
    >>> print(*watch({"loss": 3.4, "used": 1.0, "rank": 30.0, "residual": 0.0}, step=10))
    step 10: the loss 3.40 is still about ln 30 = 3.40, as if every prototype were equally likely. Keep ...
    """

    def __init__(self, prototypes: int, dim: int, patience: int) -> None:
        self.prototypes, self.dim, self.patience = prototypes, dim, patience
        self.highest = 0.0
        self._active: set[str] = set()

    def __call__(self, values: Mapping[str, float], step: int) -> list[str]:
        """The new warnings at a step."""
        if step < self.patience:
            return []
        self.highest = max(self.highest, values["rank"])
        flat = values["rank"] < max(2.0, FLAT * self.dim)
        falling = values["rank"] < self.highest / 3
        uniform = math.log(self.prototypes)
        warnings = {
            "stuck": (
                values["loss"] > STUCK * uniform and self.prototypes > 1,
                f"the loss {values['loss']:.2f} is still about ln {self.prototypes} = {uniform:.2f}, as if every "
                "prototype were equally likely. Keep the prototypes frozen longer (freeze), take fewer, a smaller eps "
                "with more iterations, switch the queue off for now (queue=0), or raise the learning rate.",
            ),
            "few": (
                values["used"] < FEW,
                f"only {100 * values['used']:.0f} % of the prototypes are near to any sample: the clusters collapse. "
                "Keep them frozen longer (freeze), take fewer (prototypes), or a smaller eps.",
            ),
            "flat": (
                flat or falling,
                f"the embeddings fill only {values['rank']:.1f} of {self.dim} directions"
                + (f", after {self.highest:.1f} before" if falling else "")
                + ": they collapse. Lower the learning rate, warm up longer (warmup), or take stronger crops.",
            ),
            "uneven": (
                values["residual"] > UNEVEN,
                f"codes share the prototypes out unevenly (off by {100 * values['residual']:.0f} %). Raise "
                "iterations or eps, take a larger batch or a queue, or fewer prototypes.",
            ),
            "lost": (
                not math.isfinite(values["loss"]),
                "the loss is not a number. Lower the learning rate.",
            ),
        }
        active = {name for name, (applies, _) in warnings.items() if applies}
        new, self._active = active - self._active, active
        return [f"step {step}: {text}" for name, (_, text) in warnings.items() if name in new]
