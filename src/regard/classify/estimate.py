"""How long a classifier will take and how much disk it needs, measured before it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.answering.estimate import Estimate
from regard.backbones import Backbone
from regard.classify.pools import Average, parse_pool
from regard.classify.settings import ClassifierSettings
from regard.classify.train import length_of, make_task
from regard.training._device import finish
from regard.vqa.grids import grids

_TIMED_STEPS = 4  # steps that are timed; the first is not counted
_KEPT, _STATE = 3, 3  # checkpoints on disk at a time; sizes of the weights in one, with the optimiser's


def estimate_heads(
    backbone: Backbone,
    stages: bool,
    sample: Tensor,
    pools: Sequence[ClassifierSettings],
    pictures: int,
    stored: int,
    learned: int,
    classes: int,
) -> Estimate:
    """Time the backbone on a few pictures, and each pool on a few batches of random features.

    `backbone`, `stages`: what makes the features.
    `sample`: prepared pictures (B, 3, H, W).
    `pools`: the settings of each pool that is to be trained.
    `pictures`: how many there are; `stored` of them have features already, `learned` are learned from.
    `classes`: how many.
    """
    backbone.eval()
    device = next(backbone.parameters()).device
    times = []
    with torch.inference_mode():
        sample = sample.to(device)
        _, height, width, dim = grids(backbone, sample[:1], stages).shape
        for picture in sample:
            finish(device)
            start = time.perf_counter()
            grids(backbone, picture[None], stages)
            finish(device)
            times.append(time.perf_counter() - start)
    own = sum(p.numel() * p.element_size() for p in backbone.parameters())
    disk, seconds = height * width * dim * 2 * (pictures - stored) + own + 5_000_000, 0.0
    for settings in pools:
        cells = (1, 1) if isinstance(parse_pool(settings.pool), Average) else (height, width)
        task = make_task((*cells, dim), classes, settings, "").to(device)
        disk += _KEPT * _STATE * sum(p.numel() * p.element_size() for p in task.parameters())
        batch = {
            "features": torch.zeros(min(settings.batch_size, learned), *cells, dim, device=device).normal_(),
            "labels": torch.arange(min(settings.batch_size, learned), device=device) % classes,
        }
        optimizer, steps = task.optimizer(), []
        for _ in range(_TIMED_STEPS):
            finish(device)
            start = time.perf_counter()
            task.loss(batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
            finish(device)
            steps.append(time.perf_counter() - start)
        seconds += min(steps[1:]) * length_of(settings, learned)[1]
    return Estimate(min(times) * (pictures - stored), seconds, disk)
