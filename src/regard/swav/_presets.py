"""Presets: the settings of pretraining for some kinds of pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard._problem import Problem
from regard.swav._settings import Crops, Settings, checked
from regard.training._setting import changed


def digits_preset() -> Settings:
    """scikit-learn's digits, 8 x 8 grey: no flips, crops that keep the shape of a digit."""
    crops = Crops(
        size=16,
        scale=(0.5, 1.0),
        local=4,
        local_size=10,
        local_scale=(0.25, 0.6),
        flip=0.0,
        jitter=(0.4, 0.4, 0.0, 0.0),
        grey=0.0,
    )
    options = {"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2}
    return Settings(
        backbone_options=options, crops=crops, canvas=16, prototypes=30, iterations=10, steps=500, batch_size=64
    )


def small_preset() -> Settings:
    """Photographs of 32 x 32, as in CIFAR."""
    return Settings(
        backbone_options={"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
        crops=Crops(local=2),
        prototypes=60,
        eps=0.02,
        iterations=10,
        steps=3000,
        batch_size=128,
    )


def scenes_preset() -> Settings:
    """Drawn scenes of about 80 x 80 with few small objects: windows of an object's size, no small crops."""
    crops = Crops(size=24, window=(0.12, 0.2), tries=4, scale=(0.5, 0.9), local=0, jitter=(0.3, 0.3, 0.3, 0.15))
    return Settings(
        backbone_options={"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
        crops=crops,
        canvas=80,
        prototypes=60,
        eps=0.03,
        steps=300,
        batch_size=128,
        freeze=100,
        warmup=20,
    )


def photos_preset() -> Settings:
    """Large photographs, as published for ImageNet with a small batch: ResNet-50, a queue from epoch 15 on, LARC."""
    crops = Crops(
        size=224,
        scale=(0.14, 1.0),
        local=6,
        local_size=96,
        local_scale=(0.05, 0.14),
        jitter=(0.8, 0.8, 0.8, 0.2),
        blur=0.5,
        blur_sigma=(0.0005, 0.009),
    )
    return Settings(
        backbone="microsoft/resnet-50",
        crops=crops,
        canvas=288,
        hidden=2048,
        dim=128,
        prototypes=3000,
        queue=3840,
        queue_epoch=15,
        freeze=5005,
        optimizer="larc",
        lr=0.6,
        final_lr=0.0006,
        weight_decay=1e-6,
        warmup=0,
        steps=1_000_000,
        batch_size=256,
    )


def photos_large_preset() -> Settings:
    """Large photographs, as published for ImageNet with 4,096 pictures per batch: no queue, a warm-up of 10 epochs.

    Batch norms share statistics with the 8 processes of a machine: over all 64 they would wait longest in every step.
    """
    return replace(
        photos_preset(),
        queue=0,
        queue_epoch=0,
        freeze=313,
        lr=4.8,
        final_lr=0.0048,
        warmup=3120,
        warmup_start=0.3,
        steps=249_600,
        batch_size=4096,
        norm_processes=8,
    )


PRESETS = {
    "digits": digits_preset,
    "small": small_preset,
    "scenes": scenes_preset,
    "photos": photos_preset,
    "photos-large": photos_large_preset,
}
"""The presets by name: functions that return their `Settings`."""


def preset(name: str, **changes: Any) -> Settings:
    """A preset with some settings changed; those of crops are addressed by their names alone.

    >>> preset("small", steps=10, local=6).crops.local
    6
    """
    if name not in PRESETS:
        raise Problem(f"there is no preset {name!r}. Choose one of {', '.join(PRESETS)}.")
    return checked(changed(PRESETS[name](), changes))
