"""What crosses? A small 3-D network on drawn clips, with and without a space-time non-local block.

A thing moves behind a wall from the left; some frames later one comes out on the right. Did it cross, or is it another
thing, of another colour? No position of the network sees both sides of the wall, nor the frames before and after, and
the mean over positions that follows cannot compare the two. A non-local block lets every position of every frame attend
to all others.

    python examples/video_crossing.py
"""

import argparse

import torch
from torch import Tensor, nn

from regard.nn import NonLocal3d

FRAMES, SIDE, SEEN = 8, 16, 2  # a thing is seen in the first two frames, and one in the last two


def clips(count: int) -> tuple[Tensor, Tensor]:
    """Clips (count, 3, time, height, width), and whether what comes out is what went in."""
    x = 0.1 * torch.randn(count, 3, FRAMES, SIDE, SIDE)
    x[..., SIDE // 2 - 3 : SIDE // 2 + 3] += 0.5  # the wall
    colours = torch.randint(0, 3, (count, 2))
    colours[:, 1] = torch.where(torch.rand(count) < 0.25, colours[:, 0], colours[:, 1])
    rows = torch.randint(0, SIDE - 3, (count,))
    for clip, (row, (before, after)) in enumerate(zip(rows.tolist(), colours.tolist(), strict=True)):
        for frame in range(SEEN):
            left, right = frame, SIDE - 2 - SEEN + frame  # it moves to the right, one pixel in a frame
            x[clip, before, frame, row : row + 3, left : left + 3] += 2.0
            x[clip, after, FRAMES - SEEN + frame, row : row + 3, right : right + 3] += 2.0
    return x, (colours[:, 0] == colours[:, 1]).long()


def network(middle: nn.Module) -> nn.Module:
    """Two convolutions in space and time with `middle` between them, and the mean over all positions."""
    first = [nn.Conv3d(3, 16, 3, (1, 2, 2), 1), nn.BatchNorm3d(16), nn.ReLU()]
    last = [nn.Conv3d(16, 32, 3, (1, 2, 2), 1), nn.BatchNorm3d(32), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    return nn.Sequential(*first, middle, *last, nn.Linear(32, 2))


def train(model: nn.Module, steps: int) -> float:
    """Accuracy on 1000 new clips after some steps of training."""
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(steps):
        x, y = clips(32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    x, y = clips(1000)
    with torch.no_grad():
        return float((model.eval()(x).argmax(-1) == y).float().mean())


def main() -> None:
    """Train both networks from every seed, with as many steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
    parser.add_argument("--seeds", type=int, default=3, help="networks of each kind (default 3)")
    parser.add_argument("--affinity", default="embedded_gaussian", help="of the block (default embedded_gaussian)")
    options = parser.parse_args()
    for with_block in (False, True):
        accuracies = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            block = NonLocal3d(16, options.affinity, subsample=(1, 2, 2), std=0.1) if with_block else nn.Identity()
            accuracies.append(f"{train(network(block), options.steps):.3f}")
        print(f"{'with' if with_block else 'without'} a non-local block: accuracy {', '.join(accuracies)}", flush=True)


if __name__ == "__main__":
    main()
