"""Attention by Euclidean distances is kernel regression: `python examples/kernel_regression.py --out kernels.png`.

The map chooses the kernel: sparsemax is Epanechnikov's, entmax with alpha = 1 + 1/n its n-th power, softmax a Gaussian.
Sparse maps adapt the bandwidth to the number of keys around a query.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard import Entmax, Euclidean, Softmax, Sparsemax, attend, attention_weights

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--out", type=Path, default=Path("out/kernels.png"), help="picture (default out/kernels.png)")
out = arguments.parse_args().out
KERNELS = {
    "softmax: Gaussian": Softmax(),
    "entmax-1.25": Entmax(1.25),
    "entmax-4/3: triweight": Entmax(4 / 3),
    "entmax-1.5: biweight": Entmax(1.5),
    "sparsemax: Epanechnikov": Sparsemax(),
}
COLOURS = dict(zip(KERNELS, ("0.6", "tab:purple", "tab:blue", "tab:green", "tab:red"), strict=True))
# Temperatures at which the three curves have about the same error.
TAUS = {"softmax: Gaussian": 0.003, "entmax-1.5: biweight": 0.012, "sparsemax: Epanechnikov": 0.05}


def truth(x: torch.Tensor) -> torch.Tensor:
    """The curve without noise."""
    return torch.sin(12 * x) + x


# Keys: many on the left, few on the right.
generator = torch.Generator().manual_seed(0)
keys = torch.cat([torch.rand(150, 1, generator=generator) * 0.5, 0.5 + torch.rand(30, 1, generator=generator) * 0.5])
values = truth(keys) + 0.3 * torch.randn(len(keys), 1, generator=generator)
queries = torch.linspace(0.02, 0.98, 300).unsqueeze(-1)

figure = Figure(figsize=(9, 5.6), layout="constrained")
grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.2))
kernels, widths = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
curves = figure.add_subplot(grid[1, :])

# One query at zero against evenly spaced keys; distances in units of the standard deviation of the kernel.
even = torch.linspace(-1, 1, 4001).unsqueeze(-1)
for name, map in KERNELS.items():
    p = attention_weights(torch.zeros(1, 1), even, Euclidean(3e-3 if name.startswith("soft") else 1.0), map)[0]
    spread = (p * even[:, 0] ** 2).sum().sqrt()
    kernels.plot(even[:, 0] / spread, p / p.max(), color=COLOURS[name], label=name)
kernels.set(xlim=(-3.5, 3.5), xlabel="distance, in standard deviations", title="kernels")
kernels.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

curves.scatter(keys[:, 0], values[:, 0], s=6, color="0.75", label="keys and their values")
curves.plot(queries[:, 0], truth(queries)[:, 0], color="black", linestyle=":", label="without noise")
for name, tau in TAUS.items():
    context = attend(queries, keys, values, Euclidean(tau), KERNELS[name])
    p = attention_weights(queries, keys, Euclidean(tau), KERNELS[name])
    curves.plot(queries[:, 0], context[:, 0], color=COLOURS[name], label=name)
    error = (context - truth(queries)).square().mean().sqrt()
    said = (
        f"{name.split(':')[0]}: error {error:.3f}, {(p > 0).sum(-1).float().mean():.0f} of {len(keys)} keys in a mean"
    )
    if KERNELS[name] != Softmax():
        reach = torch.where(p > 0, (queries - keys.mT).abs(), 0.0).amax(-1)
        widths.plot(queries[:, 0], reach, color=COLOURS[name], label=name)
        dense, sparse = (reach[half].mean() for half in (queries[:, 0] < 0.4, queries[:, 0] > 0.6))
        said += f"; reach where they are dense {dense:.3f}, where keys are sparse {sparse:.3f}"
    print(said)
widths.set(xlabel="query", ylabel="farthest key", title="bandwidths of the sparse maps", ylim=(0, None))
curves.set(xlabel="query", title="means of the values around a query")
curves.legend(fontsize=7, ncols=3, loc="upper left")
out.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(out, dpi=90)
