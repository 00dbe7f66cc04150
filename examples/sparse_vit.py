"""Sparse attention in a Hugging Face vision transformer: one line, and most weights are exactly zero.

A tiny, randomly initialised ViT learns in which quarter of a picture a bright square lies, once with each attention;
the share of nonzero weights is printed beside its accuracy. Runs in a minute on one core, without a download.
With a model of yours: AutoModelForImageClassification.from_pretrained(NAME, attn_implementation="regard_entmax15").
"""

import argparse

import torch
from transformers import AutoModelForImageClassification, ViTConfig

import regard.hf


def pictures(n: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a square of 8 x 8 in one of the four quarters, and the number of the quarter."""
    x = 0.25 * torch.randn(n, 3, size, size)
    label = torch.randint(0, 4, (n,))
    corner = torch.randint(0, size // 2 - 7, (n, 2)) + torch.stack([label // 2, label % 2], 1) * (size // 2)
    for image, (top, left) in zip(x, corner.tolist(), strict=True):
        image[:, top : top + 8, left : left + 8] += 2.0
    return x, label


def train(attention: str, steps: int) -> tuple[float, float]:
    """Accuracy after `steps`, and the share of nonzero weights."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        num_labels=4,
    )
    model = AutoModelForImageClassification.from_config(config, attn_implementation=attention)
    if attention == "regard_entmax":
        regard.hf.learn_alpha(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x, label = pictures(32)
        loss = torch.nn.functional.cross_entropy(model(x).logits, label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        x, label = pictures(256)
        out = model(x, output_attentions=True)
    nonzero = torch.stack([(p > 0).float().mean() for p in out.attentions]).mean()
    return float((out.logits.argmax(-1) == label).float().mean()), float(nonzero)


def main() -> None:
    """Train one model with each attention and print its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="training steps (default 200)")
    steps = parser.parse_args().steps
    print(f"{'attention':18}  right  weights that are not zero")
    regard.hf.register()
    for attention in ("regard_softmax", "regard_sparsemax", "regard_entmax15", "regard_entmax"):
        accuracy, nonzero = train(attention, steps)
        print(f"{attention:18}  {accuracy:5.0%}  {nonzero:5.0%}", flush=True)


if __name__ == "__main__":
    main()
