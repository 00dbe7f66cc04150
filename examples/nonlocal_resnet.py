"""A non-local block in somebody else's ResNet, which then learns what convolutions of its size cannot see.

Each picture has two bright dots. Are they in the same row? The dots are further apart than a residual block can look;
a non-local block compares all positions with each other. Random weights, no download; half a minute on a laptop.

    python examples/nonlocal_resnet.py
"""

import argparse

import torch
from torch import Tensor
from transformers import ResNetConfig, ResNetForImageClassification

from regard.nn import insert_nonlocal


def pictures(count: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Pictures (count, 3, size, size) with two dots, and whether they share a row."""
    rows = torch.randint(0, size // 4, (count, 2)) * 4
    same = torch.rand(count) < 0.5
    rows[:, 1] = torch.where(same, rows[:, 0], rows[:, 1])
    x = 0.1 * torch.randn(count, 3, size, size)
    picture = torch.arange(count)
    for dot, column in enumerate((2, size - 6)):
        for dy in range(4):
            for dx in range(4):
                x[picture, :, rows[:, dot] + dy, column + dx] += 1.0
    return x, (rows[:, 0] == rows[:, 1]).long()


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
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--affinity", default="embedded_gaussian")
    options = parser.parse_args()
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], layer_type="basic", num_labels=2)
    for with_block in (False, True):
        torch.manual_seed(0)
        model = ResNetForImageClassification(config)
        if with_block:
            x, _ = pictures(2)
            before = model.eval()(x).logits
            names = insert_nonlocal(model, after=(1, 0), affinity=options.affinity)
            unchanged = torch.equal(model(x).logits, before)
            print(f"inserted {', '.join(names)}; the logits are {'unchanged' if unchanged else 'different'}")
        accuracy = train(model.train(), options.steps)
        print(f"{'with' if with_block else 'without'} a non-local block: accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
