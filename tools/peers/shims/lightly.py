"""lightly: the loss of SwAV, three Sinkhorns, prototypes. Other heads and losses have no counterpart in regard."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.backbones import make_backbone
from regard.swav import Settings, Swav, codes, swapped_loss

_HEADS = "tests/models/test_ProjectionHeads.py::TestProjectionHeads"
TESTS = (
    "tests/loss/test_swav_loss.py",
    "tests/loss/test_capi_loss.py::TestSinkhornKnopp",
    "tests/loss/test_msn_loss.py::TestMSNLoss::test_sinkhorn",
    "tests/loss/test_msn_loss.py::TestMSNLoss::test_sinkhorn_no_iter",
    f"{_HEADS}::test_swav_prototypes",
    f"{_HEADS}::test_swav_frozen_prototypes",
    f"{_HEADS}::test_swav_multi_prototypes",
)
REASONS = {
    "*test_swav_loss.TestSwaVLoss::test__sinkhorn_gather_distributed*": (
        "needs pytest-mock, and looks for a flag: processes share a plan through `group=` of `regard.swav.codes`."
    ),
    "*test_msn_loss.TestMSNLoss::test_sinkhorn_no_iter": (
        "with no iteration lightly returns what it was given; regard's result is a distribution per row."
    ),
    "*::test_swav_multi_prototypes": "regard trains one set of prototypes; `read_swav(head=)` chooses one of several.",
}


class SwaVLoss(nn.Module):
    """Codes of the high resolution crops, predicted from all other crops."""

    def __init__(
        self, temperature: float = 0.1, sinkhorn_iterations: int = 3, sinkhorn_epsilon: float = 0.05, **more: Any
    ) -> None:
        """As lightly's."""
        super().__init__()
        if more:
            raise TypeError(f"regard has no {', '.join(more)}")
        self.temperature, self.iterations, self.eps = temperature, sinkhorn_iterations, sinkhorn_epsilon

    def forward(self, high: list[Tensor], low: list[Tensor], queue: list[Tensor] | None = None) -> Tensor:
        """The loss."""
        queued = queue or [None] * len(high)
        made = [codes(x, self.eps, self.iterations, queued=q)[0] for x, q in zip(high, queued, strict=True)]
        return swapped_loss(torch.stack([*high, *low]), torch.stack(made), self.temperature)


class SwaVPrototypes(nn.Module):
    """The prototypes of a `Swav`, frozen by it in the first steps."""

    def __init__(self, input_dim: int, n_prototypes: int, n_steps_frozen_prototypes: int = 0) -> None:
        """As lightly's."""
        super().__init__()
        backbone = make_backbone("small", widths=[4], depths=[1], size=8)
        task = Swav(backbone, Settings(dim=input_dim, prototypes=n_prototypes, freeze=n_steps_frozen_prototypes))
        self.prototypes, self.step = task.prototypes, 0
        self.scores = task.scores
        task.prototypes.weight.register_post_accumulate_grad_hook(lambda _: task.before_update(self.step))

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        """Scores."""
        self.step = step
        return self.scores(x)


def capi_sinkhorn(logits: Tensor, iterations: int = 3) -> Tensor:
    """(batch, position, clusters): a plan for each position."""
    return regard.sinkhorn(logits.transpose(0, 1), 1.0, iterations).weights.transpose(0, 1)


def msn_sinkhorn(probabilities: Tensor, iterations: int = 3) -> Tensor:
    """Of probabilities, where regard takes scores."""
    return regard.sinkhorn(probabilities.log(), 1.0, iterations).weights


class _Heads(ModuleType):
    """Heads that regard does not have: names that are imported beside those that it has."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (nn.Module,), {}) if name[:1].isupper() else super().__getattribute__(name)


def install() -> None:
    """Put the modules where the tests import them from."""
    plain = ("lightly", "lightly.models", "lightly.models.modules")
    modules: dict[str, Any] = {name: ModuleType(name) for name in plain}
    modules |= {name: _Heads(name) for name in ("lightly.loss", "lightly.models.modules.heads", "pytest_mock")}
    modules |= {name: _Heads(name) for name in ("lightly.loss.capi_loss", "lightly.loss.msn_loss")}
    modules["lightly.loss"].SwaVLoss = SwaVLoss
    modules["lightly.models.modules.heads"].SwaVPrototypes = SwaVPrototypes
    modules["lightly.loss.capi_loss"].sinkhorn_knopp = capi_sinkhorn
    modules["lightly.loss.msn_loss"].sinkhorn = msn_sinkhorn
    for name, module in modules.items():
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
