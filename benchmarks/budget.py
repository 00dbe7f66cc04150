"""Memory and time of the thesis' model and of SwAV on ImageNet on a GPU, by counting: `python -m benchmarks.budget`.

Networks are run without values (torch's meta device): operations are counted by torch, bytes are those of the tensors
that the backward pass keeps. Time is operations over a card's peak rate, times an assumed utilisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.roofline import CARDS, Card

UTILISATION = 0.3  # of the peak rate; what such networks usually reach, an assumption
IMAGENET, EPOCHS = 1_281_167, 200  # pictures to learn from; epochs of the shorter published run
VQA_QUESTIONS = 443_757  # of the training split of VQA-v2
_STATE = 12  # bytes for each weight in float32: itself, its gradient, the momentum; Adam has 4 more


@dataclass(frozen=True)
class Budget:
    """One step of a batch: weights, floating-point operations forward and backward, bytes kept between them."""

    weights: int
    operations: float
    kept: int

    def memory(self, state: int = _STATE) -> float:
        """Gigabytes of weights, gradients, optimiser and activations."""
        return (self.weights * state + self.kept) / 1e9

    def hours(self, steps: float, card: Card, devices: int = 1) -> float:
        """Of so many steps."""
        return self.operations * steps / (card.operations * UTILISATION * devices) / 3600


def count(module: nn.Module, loss: Callable[[], Tensor]) -> Budget:
    """Count one step of a module on the meta device; `loss` computes it."""
    kept: dict[int, Tensor] = {}
    own = {id(p) for p in module.parameters()}

    def pack(x: Tensor) -> Tensor:
        if id(x) not in own and not isinstance(x, nn.Parameter):
            kept[id(x)] = x
        return x

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            result = loss()
        storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in kept.values()}
        result.backward()  # type: ignore[no-untyped-call]
    weights = sum(p.numel() for p in module.parameters())
    return Budget(weights, float(counter.get_total_flops()), sum(storages.values()))


def swav(batch: int = 64) -> Budget:
    """ResNet-50 with SwAV's head on 2 views of 224 and 6 of 96 pixels of each picture."""
    from transformers import ResNetConfig, ResNetModel

    with torch.device("meta"):
        body = ResNetModel(ResNetConfig())
        head = nn.Sequential(nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 128))
        task = nn.ModuleList([body, head, nn.Linear(128, 3000, bias=False)])
        crops = [torch.empty(views * batch, 3, side, side) for views, side in ((2, 224), (6, 96))]

    def loss() -> Tensor:
        z = torch.cat([head(body(x).pooler_output.flatten(1)) for x in crops])
        scores: Tensor = task[2](z)
        return scores.log_softmax(-1).sum()

    return count(task, loss)


def thesis() -> tuple[Budget, int, int]:
    """The model of Table 6.1 on a 14 x 14 grid of 2,048 features; its batch and its epochs."""
    from regard.vqa.mcan import MCAN
    from regard.vqa.settings import preset_training

    settings = preset_training("thesis")
    model = MCAN(settings.model, vocabulary=18_000, answers=3_129, cells=(14, 14), features=2_048).to("meta")
    batch = settings.batch
    features = torch.empty(batch, 196, 2_048, device="meta")
    words = torch.ones(batch, settings.model.tokens, dtype=torch.int64, device="meta")
    return count(model, lambda: model(features, words).scores.sum()), batch, settings.epochs


def main() -> None:
    """Print the table."""
    model, batch, epochs = thesis()
    steps = VQA_QUESTIONS * epochs / batch
    views = swav()
    per_run = IMAGENET * EPOCHS / 64
    print(f"| one device | weights | memory | operations of a step | {' | '.join(c.name for c in CARDS)} |")
    print("|---" * (4 + len(CARDS)) + "|")
    for name, one, count_, devices, state in (
        (f"thesis, batch {batch}, {epochs} epochs of VQA-v2", model, steps, 1, _STATE + 4),
        (f"SwAV, ResNet-50, 64 pictures of 8 views, {EPOCHS} epochs of ImageNet, 8 devices", views, per_run, 8, _STATE),
    ):
        hours = " | ".join(f"{one.hours(count_, card, devices):.1f} h" for card in CARDS)
        size = f"{one.weights / 1e6:.1f} M | {one.memory(state):.1f} GB | {one.operations / 1e12:.2f} T"
        print(f"| {name} | {size} | {hours} |")


if __name__ == "__main__":
    main()
