"""Initialisation of a non-local block matters: from uniform attention it learns where to attend, from peaked not.

Each map has 14 x 14 positions of noise, one of which, anywhere, holds a cue and one of eight labels. The label has to
be predicted from the first position, which sees the others only through the block. The published initialisation
(standard deviation 0.01, no biases, 1/sqrt(width)) gives each of the 196 positions its share of the gradient; with the
defaults of `nn.Linear` and a scale of 1 the scores vary so much that softmax attends to a few random positions.

    python examples/nonlocal_start.py
"""

import argparse

import torch
from torch import Tensor, nn

from regard.nn import NonLocal2d

CHANNELS, SIDE, LABELS = 256, 14, 8


def maps(count: int, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (count, CHANNELS, SIDE, SIDE) and labels; `marks` holds the cue and then a direction for each label."""
    x = torch.randn(count, CHANNELS, SIDE * SIDE)
    y = torch.randint(0, LABELS, (count,))
    where = torch.randint(1, SIDE * SIDE, (count,))
    x[torch.arange(count), :, where] += 8 * marks[0] + 8 * marks[1 + y]
    return x.unflatten(-1, (SIDE, SIDE)), y


def effective(p: Tensor) -> float:
    """The effective number of positions attended to, on average: the exponential of the entropy."""
    return float(torch.special.entr(p.detach()).sum(-1).exp().mean())


def train(block: NonLocal2d, steps: int, seed: int) -> tuple[float, float, float]:
    """Effective positions before and after training, and accuracy on new maps."""
    marks = nn.functional.normalize(torch.randn(1 + LABELS, CHANNELS, generator=torch.Generator().manual_seed(9)))
    torch.manual_seed(seed)
    read = nn.Linear(CHANNELS, LABELS)
    optimizer = torch.optim.AdamW([*block.parameters(), *read.parameters()], 1e-3)
    test, labels = maps(256, marks)
    start = effective(block.weights(test[:8]))
    for _ in range(steps):
        x, y = maps(32, marks)
        loss = nn.functional.cross_entropy(read(block(x)[:, :, 0, 0]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    block.eval()
    with torch.no_grad():
        right = read(block(test)[:, :, 0, 0]).argmax(-1) == labels
        return start, effective(block.weights(test[:8])), float(right.float().mean())


def main() -> None:
    """Train the same block from both initialisations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=250, help="training steps (default 250)")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (default 2)")
    options = parser.parse_args()
    for seed in range(options.seeds):
        for name in ("as published", "wide"):
            torch.manual_seed(seed)
            block = NonLocal2d(CHANNELS, scale=1.0 if name == "wide" else "published")
            if name == "wide":
                for layer in (block.theta, block.phi, block.g, block.out):
                    layer.reset_parameters()
            start, end, accuracy = train(block, options.steps, seed)
            print(
                f"{name:12} seed {seed}: {start:5.1f} positions at the start, {end:5.1f} after, accuracy {accuracy:.2f}"
            )


if __name__ == "__main__":
    main()
