"""Continuous attention pooling on a feature grid, with its picture.

A 14 x 14 grid of noisy features has one or two marked objects, all of one class, among cells of random classes. Four
pools learn to classify the grid: a Gaussian, a truncated paraboloid, a mixture of two, and a Gaussian that selects the
number of components at test time. The picture shows the density of each.

    python examples/continuous_pool.py --out continuous_pool.png
"""

import argparse

import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.continuous import FitMixture, MatchMoments, SelectMixture
from regard.nn import ContinuousAttentionPool

SIDE, CLASSES = 14, 5
FITS = {
    "Gaussian": {"fit": MatchMoments()},
    "paraboloid": {"fit": MatchMoments(alpha=2)},
    "two Gaussians": {"fit": FitMixture(2)},
    "selected at test time": {"fit_test": SelectMixture(max_components=4)},
}


def grids(count: int) -> tuple[Tensor, Tensor]:
    """Features (count, 196, 1 + classes), the mark first, and the class of each grid."""
    x = torch.randn(count, SIDE, SIDE, 1 + CLASSES)
    x[..., 0] *= 0.2
    y = torch.randint(0, CLASSES, (count,))
    for i in range(count):
        for _ in range(1 + i % 2):
            row, column = torch.randint(0, SIDE - 3, (2,)).tolist()
            x[i, row : row + 3, column : column + 3, 0] += 2
            x[i, row : row + 3, column : column + 3, 1 + y[i]] += 2
    return x.flatten(1, 2), y


def train(pool: ContinuousAttentionPool, steps: int) -> float:
    """Accuracy on new grids after some steps of training."""
    optimizer = torch.optim.Adam(pool.parameters(), 1e-2)
    for _ in range(steps):
        x, y = grids(64)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(pool(x).context, y).backward()
        optimizer.step()
    x, y = grids(500)
    with torch.no_grad():
        return float((pool.eval()(x).context.argmax(-1) == y).float().mean())


def main() -> None:
    """Train the pools and draw the density of each over a grid with two objects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps (default 100)")
    parser.add_argument("--out", default="continuous_pool.png", help="the picture (default continuous_pool.png)")
    options = parser.parse_args()
    torch.manual_seed(0)
    shown, fine = grids(2)[0][1:], (torch.arange(140) + 0.5) / 140
    points = torch.cartesian_prod(fine, fine).flip(-1)
    figure = Figure(figsize=(3.2 * len(FITS), 3.4), layout="constrained")
    axes = figure.subplots(1, len(FITS))
    for (name, fits), ax in zip(FITS.items(), axes, strict=True):
        pool = ContinuousAttentionPool(1 + CLASSES, (SIDE, SIDE), out=CLASSES, hidden=16, **fits)
        accuracy = train(pool, options.steps)
        with torch.no_grad():
            density = pool(shown).density.pdf(points).reshape(140, 140)
        print(f"{name}: accuracy {accuracy:.2f}")
        ax.imshow(shown[0, :, 0].reshape(SIDE, SIDE), extent=(0, 1, 1, 0), cmap="gray")
        ax.contourf(fine, fine, density, levels=density.max() * torch.linspace(0.05, 1, 7), cmap="plasma", alpha=0.6)
        ax.set(title=f"{name}: {accuracy:.2f}", xticks=[], yticks=[])
    figure.savefig(options.out, dpi=100)


if __name__ == "__main__":
    main()
