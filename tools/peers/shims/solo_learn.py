"""solo-learn: the loss of SwAV and its Sinkhorn. Its method class, with trainer and configuration, is its own."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor, nn

from regard.swav import codes, swapped_loss

TESTS = ("tests/losses/test_swav.py",)
REASONS: dict[str, str] = {}


class SinkhornKnopp(nn.Module):
    """Codes of scores."""

    def __init__(self, num_iters: int = 3, epsilon: float = 0.05, world_size: int = 1) -> None:
        """As solo-learn's."""
        super().__init__()
        if world_size != 1:
            raise TypeError("regard takes a process group")
        self.iterations, self.eps = num_iters, epsilon

    def forward(self, scores: Tensor) -> Tensor:
        """Codes (B, K)."""
        return codes(scores, self.eps, self.iterations)[0]


def swav_loss_func(preds: Tensor, assignments: list[Tensor], temperature: float = 0.1) -> Tensor:
    """Codes predicted from the other views."""
    return swapped_loss(preds, torch.stack(assignments), temperature)


def install() -> None:
    """Put the modules where the tests import them from."""
    names = ("solo", "solo.losses", "solo.utils", "solo.utils.sinkhorn_knopp")
    modules = {name: ModuleType(name) for name in names}
    modules["solo.losses"].swav_loss_func = swav_loss_func  # type: ignore[attr-defined]
    modules["solo.utils.sinkhorn_knopp"].SinkhornKnopp = SinkhornKnopp  # type: ignore[attr-defined]
    for module in modules.values():
        module.__path__ = []
    sys.modules.update(modules)
