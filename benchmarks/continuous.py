"""Continuous attention against discrete softmax attention of the same shape: batch 64, L = 196, N = 100, D = 1024."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.harness import Row, peak_memory, race, report
from regard import continuous as C

BATCH, SIDE, CHANNELS = 64, 14, 1024
VARIANCE = 1e-3
CONTESTANTS = {
    "Gaussian": ({}, 1.3),
    "Paraboloid": ({"alpha": 2}, 1.5),
    "mixture of 4, 5 iterations": ({"components": 4, "iterations": 5}, 1.3),
}

SETUP = f"""
import torch
from regard import continuous as C
torch.manual_seed(0)
cells, basis = C.grid({SIDE}, {SIDE}), C.GaussianBasis.on_grid(10, 10, variance={VARIANCE})
v = torch.randn({BATCH}, {SIDE * SIDE}, {CHANNELS}, requires_grad=True)
s = torch.randn({BATCH}, {SIDE * SIDE}, requires_grad=True)
C.ridge(cells, basis)
# Threads and libraries are loaded before memory is measured.
small = torch.randn(2, {SIDE * SIDE}, 8, requires_grad=True)
for options in ({{}}, {{"alpha": 2}}, {{"components": 4}}):
    C.continuous_attention(small, torch.softmax(s.detach()[:2], -1), cells, basis, **options).context.sum().backward()
"""
DISCRETE = "(torch.softmax(s, -1).unsqueeze(-2) @ v).sum().backward()"


def main() -> None:
    """Time, memory, and `select_mixture` against a loop over examples."""
    # Memory first: a child process inherits the peak memory of its parent, and timing raises that.
    memory_rows = memory()
    report("continuous", speed() + memory_rows + selection())


def rays(mean: Tensor, var: Tensor, centres: Tensor, variance: float, angles: int = 100) -> Tensor:
    """E_p[N(t; m_j, variance I)] (B, N) under a truncated paraboloid by the published rule, closed form along rays.

    `mean`, `var`: of the paraboloids, (B, 2) and (B, 2, 2).
    `centres`: m_j, (N, 2).
    `variance`: of the basis functions.
    `angles`: number of rays from the mean; default 100.
    """
    sigma = 9 * math.pi * torch.linalg.det(var).sqrt()[:, None, None] * var
    lam = -((math.pi * torch.linalg.det(sigma).sqrt()) ** -0.5)
    back = torch.linalg.inv(torch.linalg.cholesky(-2 * lam[:, None, None] * sigma))
    mu, cov = (centres - mean.unsqueeze(-2)) @ back.mT, variance * back @ back.mT
    precision, peak = torch.linalg.inv(cov), 1 / (2 * math.pi * torch.linalg.det(cov).sqrt())
    angle = torch.arange(angles) * (2 * math.pi / angles)
    a = torch.stack([angle.cos(), angle.sin()])  # (2, angles)
    spread = 1 / ((precision @ a) * a).sum(-2, keepdim=True)  # (B, 1, angles)
    sd, r0 = spread.sqrt(), spread * (mu @ precision @ a)
    level = ((mu @ precision) * mu).sum(-1, keepdim=True) - r0.square() / spread
    scale = peak[:, None, None] * math.sqrt(2 * math.pi) * sd * torch.exp(-0.5 * level)
    near, far = -r0 / sd, (1 - r0) / sd
    normal = lambda x: torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # noqa: E731
    mass = torch.erf(far * math.sqrt(0.5)) - torch.erf(near * math.sqrt(0.5))
    first = (2 * sd**3 + r0**2 * sd + r0 * sd) * normal(far)
    second = (2 * sd**3 + r0**2 * sd - sd) * normal(near)
    along = scale * (first - second - (r0**3 + (3 * spread - 1) * r0) / 2 * mass)
    return -lam.unsqueeze(-1) * along.sum(-1) * (2 * math.pi / angles)


def published(
    v: Tensor, weights: Tensor, cells: C.Locations, basis: C.GaussianBasis, operator: Tensor, alpha: int
) -> Tensor:
    """Continuous attention as published, (B, D): coefficients B = H G of the value function first, then B r.

    `v`, `weights`: values (B, L, D) and discrete weights (B, L).
    `cells`, `basis`: locations, and functions of the value function.
    `operator`: G of the ridge regression, (L, N).
    `alpha`: 1 for a Gaussian, 2 for a paraboloid.
    """
    points, centres = cells.points.float(), basis.centres.float()
    mean = weights @ points
    offset = points - mean.unsqueeze(-2)
    var = (weights.unsqueeze(-1) * offset).mT @ offset + torch.diag(cells.sides.float().square() / 12)
    if alpha == 2:
        r = rays(mean, var, centres, VARIANCE)
    else:
        both = var + VARIANCE * torch.eye(2)
        between = mean.unsqueeze(-2) - centres
        distance = ((between @ torch.linalg.inv(both)) * between).sum(-1)
        r = torch.exp(-0.5 * distance) / (2 * math.pi * torch.linalg.det(both).sqrt().unsqueeze(-1))
    coefficients = v.mT @ operator  # (B, D, N)
    return (coefficients @ r.unsqueeze(-1)).squeeze(-1)


def speed() -> list[Row]:
    torch.manual_seed(0)
    cells, basis = C.grid(SIDE, SIDE), C.GaussianBasis.on_grid(10, 10, variance=VARIANCE)
    v = torch.randn(BATCH, SIDE * SIDE, CHANNELS, requires_grad=True)
    s = torch.randn(BATCH, SIDE * SIDE, requires_grad=True)
    upstream = torch.randn(BATCH, CHANNELS)

    def discrete() -> None:
        v.grad = s.grad = None
        (torch.softmax(s, -1).unsqueeze(-2) @ v).squeeze(-2).backward(upstream)

    def continuous(options: dict) -> None:
        v.grad = s.grad = None
        weights = torch.softmax(s, -1)
        C.continuous_attention(v, weights, cells, basis, **options).context.backward(upstream)

    operator = C.ridge(cells, basis).float()

    def as_published(alpha: int) -> None:
        v.grad = s.grad = None
        published(v, torch.softmax(s, -1), cells, basis, operator, alpha).backward(upstream)

    for alpha, name in ((1, "Gaussian"), (2, "Paraboloid")):
        with torch.no_grad():
            weights = torch.softmax(s, -1)
            ours = C.continuous_attention(v, weights, cells, basis, alpha=alpha).context
            theirs = published(v, weights, cells, basis, operator, alpha)
        apart = float((ours - theirs).abs().max() / ours.abs().max())
        print(f"{name}: the published form differs by {apart:.1e} of the largest entry")
    runs = {name: lambda options=options: continuous(options) for name, (options, _) in CONTESTANTS.items()}
    times = race({"discrete": discrete, **runs}, seconds=10)
    theirs = times["discrete"].median
    # Values are read twice, and their gradient is written.
    least = limits.limit(numbers=3 * v.numel(), multiplications=2 * v.numel())
    duels = {
        name: race({"ours": runs[name], "published": lambda a=alpha: as_published(a)}, seconds=6)
        for alpha, name in ((1, "Gaussian"), (2, "Paraboloid"))
    }
    peers = [
        Row(
            f"{name}, forward and backward",
            "ms",
            t["ours"].median,
            "published form",
            t["published"].median,
            limit=least,
        )
        for name, t in duels.items()
    ]
    return peers + [
        Row(
            f"{name}, forward and backward",
            "ms",
            times[name].median,
            "discrete softmax",
            theirs,
            f"at most {most}x its time",
            times[name].median <= most * theirs,
            least,
        )
        for name, (_, most) in CONTESTANTS.items()
    ]


def memory() -> list[Row]:
    theirs = peak_memory(SETUP, DISCRETE)
    rows = []
    for name, (options, _) in CONTESTANTS.items():
        call = f"C.continuous_attention(v, torch.softmax(s, -1), cells, basis, **{options!r}).context.sum().backward()"
        ours = peak_memory(SETUP, call)
        promise = "at most 1.5x its memory"
        rows.append(Row(f"{name}, peak memory", "MB", ours, "discrete softmax", theirs, promise, ours <= 1.5 * theirs))
    return rows


def selection() -> list[Row]:
    torch.manual_seed(0)
    cells = C.grid(SIDE, SIDE)
    weights = torch.softmax(torch.randn(BATCH, SIDE * SIDE), -1)

    def loop() -> None:
        for w in weights:
            C.select_mixture(w, cells)

    times = race({"ours": lambda: C.select_mixture(weights, cells), "loop": loop}, seconds=5, least=3)
    ours, theirs = times["ours"].median, times["loop"].median
    one = race(
        {"ours": lambda: C.select_mixture(weights, cells), "fit": lambda: C.fit_mixture(weights, cells, 4)}, 5, 3
    )
    mine, fit, case = one["ours"].median, one["fit"].median, "select_mixture, batch 64"
    return [
        Row(case, "ms", ours, "a loop over examples", theirs, "at least 10x faster", theirs >= 10 * ours),
        Row(case, "ms", mine, "one fit_mixture of 4", fit, "at most 20x its time", mine <= 20 * fit),
    ]
