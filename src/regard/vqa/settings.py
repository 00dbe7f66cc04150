"""The settings of a run and its presets; the command line's options are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from regard import _check
from regard._problem import Problem
from regard.training._setting import changed, setting
from regard.vqa.mcan import ModelSettings, relations, small


@dataclass(frozen=True)
class TrainSettings:
    """How to train; the defaults are those of the thesis (Table 6.1)."""

    model: ModelSettings = field(default_factory=ModelSettings)
    epochs: int = setting("Passes over the data.", 13, at_least=1)
    batch: int = setting("Questions in a batch, over all processes.", 64, at_least=1)
    lr: float = setting("The learning rate at its highest.", 1e-4)
    optimizer: Literal["adam", "muon"] = setting("The optimiser.", "adam")
    schedule: Literal["thesis", "cosine"] = setting(
        "The learning rate over the steps: as in Table 6.1 of the thesis, or one cosine.", "thesis"
    )
    above: int = setting("An answer is learned if it was given more often than this.", 8, at_least=0)
    seed: int = setting("Decides all that is random.", 0)
    accumulate: int = setting("Batches of one update.", 1, at_least=1)
    clip: float | None = setting("Largest norm of the gradient.", None)
    patience: int | None = setting("Epochs without a better validation accuracy before it stops.", None, at_least=1)
    glove: str | None = setting("Word vectors to begin with: a GloVe text file as wide as --words.", None)
    grouped: bool = setting(
        "All questions about a picture at once, or each by itself; a batch has as many questions.",
        False,
        flags=("--grouped/--single",),
    )

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("epochs", "batch", "accumulate"):
            _check.count(name, getattr(self, name))
        _check.number("lr", self.lr, above=0)
        _check.choice("optimizer", self.optimizer, ("adam", "muon"))
        _check.choice("schedule", self.schedule, ("thesis", "cosine"))

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


def small_training(**changes: Any) -> TrainSettings:
    """The settings for scenes: the small model, four epochs, one cosine.

    >>> small_training(epochs=3).model.width
    64
    """
    model = changes.pop("model", None) or small()
    short: dict[str, Any] = {"model": model, "epochs": 4, "batch": 64, "lr": 2e-3, "schedule": "cosine", "clip": 64.0}
    return TrainSettings(**(short | {"optimizer": "muon", "grouped": True} | changes))


def relations_training() -> TrainSettings:
    """The settings for questions that compare objects: another model, two epochs.

    >>> relations_training().model.before
    1
    """
    return small_training(model=relations(), epochs=2)


TRAIN_PRESETS: dict[str, Callable[[], TrainSettings]] = {
    "thesis": TrainSettings,
    "small": small_training,
    "relations": relations_training,
}
"""The presets by name: functions that make their `TrainSettings`."""


def preset_training(preset: str, **changes: Any) -> TrainSettings:
    """The settings of a preset, "thesis" (Table 6.1), "small" or "relations", with some changed, also of its model.

    >>> preset_training("relations", attention="mixture-2", batch=32).epochs
    2
    """
    if preset not in TRAIN_PRESETS:
        raise Problem(f"there is no preset {preset!r}. Choose one of {', '.join(TRAIN_PRESETS)}.")
    return changed(TRAIN_PRESETS[preset](), changes)


def settings_of(config: dict[str, Any]) -> TrainSettings:
    """The settings that a run was trained with, from its config.json."""
    return TrainSettings(model=ModelSettings(**config["model"]), **config["training"])


def thesis_schedule(per_epoch: int) -> Callable[[int], float]:
    """The factor of the learning rate: 1/4, 1/2, 3/4, 1 over the first epochs, a fifth from epoch 10, again from 12.

    Epochs are counted from one, as in Table 6.1.

    >>> factor = thesis_schedule(per_epoch=1)
    >>> [round(factor(step), 3) for step in range(13)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2, 0.04, 0.04]
    """

    def factor(step: int) -> float:
        epoch = step // per_epoch + 1
        return min(epoch / 4, 1.0) * math.prod(0.2 for decay in (10, 12) if epoch >= decay)

    return factor
