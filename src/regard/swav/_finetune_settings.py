"""The settings of fine-tuning and of linear evaluation, and presets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from regard._problem import Problem
from regard.swav._settings import Crops, Pair, check_crops
from regard.training._setting import changed, setting


@dataclass(frozen=True)
class FinetuneSettings:
    """All settings that decide the result of fine-tuning. `batch_size` counts all processes together.

    >>> FinetuneSettings(labels=0.1).lr_head
    0.2
    """

    labels: float = setting(
        "Share of the labels to learn from, the same of each class and at least one picture of each.", 1.0
    )
    frozen: bool = setting(
        "Train the linear layer alone, on the frozen backbone, or the whole network.",
        False,
        flags=("--frozen/--whole",),
    )
    lr: float = setting("The learning rate of the backbone at the start; not used if it is frozen.", 0.01, at_least=0)
    lr_head: float = setting("The learning rate of the linear layer at the start.", 0.2, at_least=0)
    schedule: Literal["steps", "cosine"] = setting(
        "How learning rates fall: steps multiplies them by 0.2 after 60 and 80 % of the epochs, cosine falls to 0.",
        "steps",
    )
    weight_decay: float = setting("Weight decay of all weights.", 0.0, at_least=0)
    momentum: float = setting("Momentum of SGD.", 0.9, at_least=0)
    epochs: int = setting("Passes over the pictures that are learned from.", 20, at_least=1)
    batch_size: int = setting("Pictures per batch, over all processes.", 256, at_least=1)
    held_out: float = setting(
        "Share of each class that is held out to evaluate on, where the data have no folders train and val.", 0.2
    )
    canvas: int = setting(
        "Side that pictures are resized to before cropping, in pixels; 0 chooses by their size and that of the views.",
        0,
        at_least=0,
    )
    scale: Pair = setting("Least and largest share of the picture in a view.", (0.08, 1.0))
    flip: float = setting("Probability that a view is mirrored.", 0.5)
    seed: int = setting("Seed of all random numbers: labels, held-out pictures, order, views, linear layer.", 0)

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def views_of(settings: FinetuneSettings, size: int) -> Crops:
    """How views of `size` pixels are cut: resized crops, mirrored at random, in their own colours."""
    return Crops(size=size, scale=settings.scale, local=0, flip=settings.flip, jitter_p=0.0, grey=0.0)


def whole_preset() -> FinetuneSettings:
    """The whole network on all labels, as published for 10 % of them."""
    return FinetuneSettings()


def ten_percent_preset() -> FinetuneSettings:
    """The whole network on 10 % of the labels, as published."""
    return FinetuneSettings(labels=0.1)


def one_percent_preset() -> FinetuneSettings:
    """The whole network on 1 % of the labels, as published."""
    return FinetuneSettings(labels=0.01, lr=0.02, lr_head=5.0)


def linear_preset() -> FinetuneSettings:
    """A linear layer on the frozen backbone, with random crops and mirroring, as published."""
    return FinetuneSettings(frozen=True, lr_head=0.3, schedule="cosine", weight_decay=1e-6, epochs=100)


FINETUNE_PRESETS = {
    "whole": whole_preset,
    "10-percent": ten_percent_preset,
    "1-percent": one_percent_preset,
    "linear": linear_preset,
}
"""The presets of fine-tuning by name: functions that return their `FinetuneSettings`."""


def finetune_preset(name: str, **changes: Any) -> FinetuneSettings:
    """A preset of fine-tuning with some settings changed.

    >>> finetune_preset("linear", epochs=5).frozen
    True
    """
    if name not in FINETUNE_PRESETS:
        raise Problem(f"there is no preset {name!r}. Choose one of {', '.join(FINETUNE_PRESETS)}.")
    return checked_finetuning(changed(FINETUNE_PRESETS[name](), changes))


def checked_finetuning(settings: FinetuneSettings) -> FinetuneSettings:
    """The settings, unchanged; a Problem if a value is out of range."""
    if not 0 < settings.labels <= 1:
        raise Problem(f"labels is a share above 0 and at most 1, not {settings.labels:g}. 10 % is 0.1.")
    if not 0 < settings.held_out < 1:
        raise Problem(f"held_out is a share between 0 and 1, not {settings.held_out:g}.")
    for name in ("epochs", "batch_size"):
        if getattr(settings, name) < 1:
            raise Problem(f"{name} must be at least 1, not {getattr(settings, name)}.")
    for name in ("lr", "lr_head", "weight_decay", "canvas"):
        if getattr(settings, name) < 0:
            raise Problem(f"{name} cannot be negative.")
    if not 0 <= settings.momentum < 1:
        raise Problem(f"momentum must be at least 0 and below 1, not {settings.momentum:g}.")
    if settings.schedule not in ("steps", "cosine"):
        raise Problem(f"schedule must be steps or cosine, not {settings.schedule!r}.")
    check_crops(views_of(settings, 1))
    return settings
