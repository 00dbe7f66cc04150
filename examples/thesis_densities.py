"""Figures 3.1 and 5.1 of the thesis and their relatives: `python examples/thesis_densities.py --out pictures/`."""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard import continuous as C

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--out", type=Path, default=Path("out/pictures"), help="folder (default out/pictures)")
out = arguments.parse_args().out
out.mkdir(parents=True, exist_ok=True)

# Figure 3.1: the maps of the score -|t|^2 / 2 on the plane for alpha 1 and 2, each with its own scale.
axis = torch.linspace(-3, 3, 121)
y, x = torch.meshgrid(axis, axis, indexing="ij")
points = torch.stack([x, y], -1).reshape(-1, 2)
figure = Figure(figsize=(8, 3.6), layout="constrained")
for place, (alpha, name) in enumerate({1: "Gaussian", 2: "truncated paraboloid"}.items(), 1):
    density = C.from_canonical(torch.zeros(2), -torch.eye(2) / 2, alpha)
    ax = figure.add_subplot(1, 2, place, projection="3d")
    ax.plot_surface(x, y, density.pdf(points).reshape(x.shape), cmap="viridis", rcount=60, ccount=60, linewidth=0)
    ax.set_title(f"alpha = {alpha}: {name}, peak {density.pdf(torch.zeros(1, 2)).item():.3f}", fontsize=10)
    ax.set(xlabel="t1", ylabel="t2")
figure.savefig(out / "thesis-3-1.png", dpi=80)

# The same on the line for more values of alpha, with the same score, and with the same variance.
line = torch.linspace(-3.5, 3.5, 701)
figure = Figure(figsize=(8, 3), layout="constrained")
left, right = figure.subplots(1, 2)
alphas = (1, 1.2, 1.5, 2, 2.5, 3)
for place, alpha in enumerate(alphas):
    same_score = C.from_canonical(torch.zeros(1), -torch.eye(1) / 2, alpha)
    same_variance = C.from_cholesky(torch.zeros(1), torch.eye(1), alpha)
    shade = str(0.75 * (1 - place / (len(alphas) - 1)))
    for ax, density in ((left, same_score), (right, same_variance)):
        ax.plot(line, density.pdf(line.unsqueeze(-1)), color=shade, label=f"{alpha:g}")
    variance, peak = same_score.covariance.item(), same_score.pdf(torch.zeros(1, 1)).item()
    print(f"alpha {alpha:g}: variance {variance:.4f}, peak {peak:.4f}")
left.set(title="the map of the score -t²/2", xlabel="t", ylabel="density")
right.set(title="variance 1", xlabel="t")
right.legend(title="alpha")
figure.savefig(out / "thesis-family.png", dpi=80)

# Figure 5.1: data in two clumps, and what one Gaussian and a mixture of two make of them.
generator = torch.Generator().manual_seed(0)
clumps = torch.cat(
    [
        torch.randn(160, 2, generator=generator) * torch.tensor([0.5, 0.35]) + torch.tensor([-1.4, 0.9]),
        torch.randn(120, 2, generator=generator) * torch.tensor([0.4, 0.6]) + torch.tensor([1.3, -0.6]),
    ]
)
even = torch.full((len(clumps),), 1 / len(clumps))
one = C.match_moments(even, clumps)
two = C.fit_mixture(even, clumps, 2, 100, "random", restarts=5, generator=generator)
alone = C.Mixture(torch.ones(1), C.Gaussian(one.mean[None], one.covariance[None]))
figure = Figure(figsize=(8, 3.6), layout="constrained")
top = two.pdf(points).max()
panels = {"one Gaussian, maximum likelihood": alone, "mixture of two Gaussians, EM": two}
for ax, (title, density) in zip(figure.subplots(1, 2, sharex=True, sharey=True), panels.items(), strict=True):
    p = density.pdf(points).reshape(x.shape)
    ax.scatter(*clumps.T, s=6, color="0.6", linewidths=0)
    ax.contour(x, y, p, levels=torch.tensor([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8]) * top, cmap="viridis")
    ax.set_title(title, fontsize=10)
    print(f"{title}: mean log-likelihood {C.log_likelihood(density, even, clumps).item():.3f}")
figure.savefig(out / "thesis-5-1.png", dpi=80)
