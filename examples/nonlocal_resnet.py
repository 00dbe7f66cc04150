"""A non-local block inserted into a ResNet of transformers, which then solves a task that it could not solve before.

Each picture has two coloured squares, one at the left and one at the right. Do they have the same colour? No position
of this small ResNet has both in its receptive field, and the mean over positions that follows cannot compare them. A
non-local block lets every position attend to all others. Random weights, no download.

    python examples/nonlocal_resnet.py
"""

import argparse

import torch
from torch import Tensor
from transformers import ResNetConfig, ResNetForImageClassification

from regard.nn import insert_nonlocal


def pictures(count: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """Pictures (count, 3, size, size) with two squares, and whether they are of one colour."""
    colours = torch.randint(0, 3, (count, 2))
    colours[:, 1] = torch.where(torch.rand(count) < 0.25, colours[:, 0], colours[:, 1])
    rows = torch.randint(0, size // 4, (count, 2)) * 4
    x = 0.1 * torch.randn(count, 3, size, size)
    for picture in range(count):
        for square, left in enumerate((0, size - 4)):
            top = int(rows[picture, square])
            x[picture, colours[picture, square], top : top + 4, left : left + 4] += 2.0
    return x, (colours[:, 0] == colours[:, 1]).long()


def train(model: ResNetForImageClassification, steps: int) -> float:
    """Accuracy on new pictures after some steps of training."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        x, y = pictures(64)
        loss = model(x, labels=y).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    x, y = pictures(1000)
    with torch.no_grad():
        return float((model(x).logits.argmax(-1) == y).float().mean())


def main() -> None:
    """Train the same small ResNet with and without the block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="training steps (default 120)")
    parser.add_argument("--affinity", default="embedded_gaussian", help="of the block (default embedded_gaussian)")
    options = parser.parse_args()
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=2)
    for with_block in (False, True):
        torch.manual_seed(0)
        model = ResNetForImageClassification(config)
        if with_block:
            x, _ = pictures(2)
            before = model.eval()(x).logits
            names = insert_nonlocal(model, after=(0, 0), affinity=options.affinity)
            unchanged = torch.equal(model(x).logits, before)
            print(f"inserted {', '.join(names)}; the logits are {'unchanged' if unchanged else 'different'}")
        accuracy = train(model.train(), options.steps)
        print(f"{'with' if with_block else 'without'} a non-local block: accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
