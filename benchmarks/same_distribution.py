"""A token must find the others drawn from its distribution: Wasserstein attention against scaled dot product.

A sequence has 24 tokens in 4 groups. A group draws a spread and a value; its tokens hold 16 samples with that spread
around zero, in any order, and the value with noise of the same variance. The answer, for every token, is its group's
value. A token alone can reach a mean squared error of 0.5; one that finds its five companions, 1/7 = 0.143.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

from benchmarks.harness import Row, report
from regard.maps.entmax import softmax
from regard.maps.gates import inverse
from regard.maps.sinkhorn import Sinkhorn
from regard.nn import Gate, WassersteinSelfAttention
from regard.wasserstein.affinities import BuresW2, EmpiricalW2, EntropicW2, GaussianW2, HistogramW1, Unsquared

GROUPS, COMPANIONS, SAMPLES, DIM = 4, 6, 16, 32


def draw(sequences: int) -> tuple[Tensor, Tensor]:
    """Tokens (sequences, 24, 17) and answers (sequences, 24)."""
    spread = torch.exp(3 * torch.rand(sequences, GROUPS, 1, 1) - 1.5)
    value = torch.randn(sequences, GROUPS, 1, 1).expand(-1, -1, COMPANIONS, 1)
    samples = spread * torch.randn(sequences, GROUPS, COMPANIONS, SAMPLES)
    tokens = torch.cat([samples, value + torch.randn_like(value)], -1)
    return tokens.flatten(1, 2), value.flatten(1)


class DotSelfAttention(nn.Module):
    """Scaled dot product with the same projections."""

    def __init__(self, dim: int, heads: int) -> None:
        """Create the four projections."""
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Output with the shape of x."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for p in (self.query, self.key, self.value))
        return self.out(scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2))


class Model(nn.Module):
    """Tokens, embedded by one linear layer or by a small network, one layer of attention, one linear answer."""

    def __init__(self, attention: nn.Module, deep: bool) -> None:
        """Put the three parts together."""
        super().__init__()
        wide = [nn.Linear(SAMPLES + 1, 64), nn.GELU(), nn.Linear(64, DIM)]
        self.embed = nn.Sequential(*wide) if deep else nn.Linear(SAMPLES + 1, DIM)
        self.attention = attention
        self.answer = nn.Linear(2 * DIM, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """An answer for every token."""
        x = self.embed(tokens)
        return self.answer(torch.cat([x, self.attention(x)], -1)).squeeze(-1)


def learn(attention: Callable[[], nn.Module], deep: bool, steps: int, seed: int = 0, rounds: int = 16) -> float:
    """Train from scratch; the mean squared error on new sequences.

    `attention`: returns the layer.
    `deep`: embed tokens by a small network, not by one linear layer.
    `steps`: of training, each with 64 sequences.
    `seed`: of weights and training data; default 0.
    `rounds`: of 64 new sequences each; default 16.
    """
    torch.manual_seed(seed)
    model = Model(attention(), deep)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for _ in range(steps):
        tokens, answer = draw(64)
        loss = mse_loss(model(tokens), answer)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    torch.manual_seed(10_000)
    with torch.no_grad():
        new = [draw(64) for _ in range(rounds)]
        return statistics.mean(float(mse_loss(model(tokens), answer)) for tokens, answer in new)


def wasserstein(affinity: object, map_: Callable[[], object] = lambda: softmax) -> Callable[[], nn.Module]:
    """A function that returns Wasserstein self-attention with two heads."""
    return lambda: WassersteinSelfAttention(DIM, 2, affinity, map_())


DOT = "scaled dot product"
SLOW = {"entropic W2, softmax"}  # gets fewer steps, and the report says so
CONTESTANTS: dict[str, Callable[[], nn.Module]] = {
    DOT: lambda: DotSelfAttention(DIM, 2),
    "Gaussian W2^2, softmax": wasserstein(None),
    "Gaussian W2, inverse": wasserstein(Unsquared(GaussianW2()), lambda: inverse),
    "Gaussian W2, gate": wasserstein(Unsquared(GaussianW2()), lambda: Gate(2, bias=2.0)),
    "empirical W2^2, softmax": wasserstein(EmpiricalW2()),
    "empirical W2, inverse": wasserstein(Unsquared(EmpiricalW2(), tau=0.1), lambda: inverse),
    "empirical W2, gate": wasserstein(Unsquared(EmpiricalW2()), lambda: Gate(2, bias=0.5, tau=0.5)),
    "empirical W2^2, Sinkhorn": wasserstein(EmpiricalW2(), Sinkhorn),
    "Bures W2, softmax": wasserstein(BuresW2(2, tau=0.5)),
    "histogram W1, softmax": wasserstein(HistogramW1(tau=0.5)),
    "entropic W2, softmax": wasserstein(EntropicW2(4, eps=0.5, iterations=10, tau=0.5)),
}


def main(steps: int = 500, seeds: int = 2) -> None:
    rows = []
    for deep in (False, True):
        tokens = "tokens embedded by a network" if deep else "tokens embedded linearly"
        errors = {}
        for name, attention in CONTESTANTS.items():
            start = time.perf_counter()
            share = 5 if name in SLOW else 1
            runs = [learn(attention, deep, steps // share, seed) for seed in range(seeds)]
            errors[name] = statistics.mean(runs)
            spent = time.perf_counter() - start
            print(f"{tokens}: {name}: {[round(r, 3) for r in runs]} in {spent:.0f} s", file=sys.stderr, flush=True)
            if name != DOT:
                note = f" ({steps // share} steps, not {steps})" if share > 1 else ""
                rows.append(Row(f"{name}{note}; {tokens}", "mse", errors[name], DOT, errors[DOT]))
    report("same_distribution", rows)
