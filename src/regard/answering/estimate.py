"""How long it will take and how much disk it needs, measured on a few pictures and steps before it starts."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard._problem import Problem
from regard.backbones import Backbone
from regard.training._device import finish
from regard.training._progress import duration
from regard.vqa.grids import grids
from regard.vqa.mcan import MCAN
from regard.vqa.plan import TrainingPlan
from regard.vqa.settings import TrainSettings
from regard.vqa.train import Answering

_STEPS = 4  # steps that are timed; the first is not counted
_KEPT_CHECKPOINTS, _STATE = 3, 3  # checkpoints on disk at a time; sizes of the weights in one, with the optimiser's


@dataclass(frozen=True)
class Estimate:
    """Seconds for features and for training on this machine, and bytes on disk.

    >>> print(Estimate(features=125.0, training=30.0, disk=250_000_000))
    about 2 minutes for the features and 30 seconds for the training; 250 MB on disk
    """

    features: float
    training: float
    disk: int

    def __str__(self) -> str:
        """In words."""
        disk = f"{self.disk / 1e6:.0f} MB on disk" if self.disk < 1e9 else f"{self.disk / 1e9:.1f} GB on disk"
        return (
            f"about {duration(self.features)} for the features and {duration(self.training)} for the training; {disk}"
        )

    def check_space(self, folder: Path) -> None:
        """Raise a Problem if the disk of a folder, which need not exist yet, has too little space."""
        there = folder.resolve()
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        if free < self.disk:
            raise Problem(
                f"{there} has {free / 1e6:.0f} MB free, and about {self.disk / 1e6:.0f} MB are needed. Make space, or "
                "name a folder on another disk: --out"
            )


def estimate(
    backbone: Backbone,
    stages: bool,
    sample: Tensor,
    settings: TrainSettings,
    plan: TrainingPlan,
    *,
    pictures: int,
    stored: int,
    present: int,
    words: int,
    answers: int,
) -> Estimate:
    """Time the backbone on a few pictures and the model on a few batches of random features, on its device.

    `backbone`, `stages`: what makes the features.
    `sample`: prepared pictures (B, 3, H, W).
    `settings`, `plan`: of the training.
    `pictures`: how many there are; `stored` of them have features already.
    `present`: bytes of the backbone and the checkpoints that the run has already.
    `words`, `answers`: the sizes of the vocabularies.
    """
    backbone.eval()
    device = next(backbone.parameters()).device
    with torch.inference_mode():
        sample = sample.to(device)
        _, height, width, dim = grids(backbone, sample[:1], stages).shape
        times = []
        for picture in sample:
            finish(device)
            start = time.perf_counter()
            grids(backbone, picture[None], stages)
            finish(device)
            times.append(time.perf_counter() - start)
        each = min(times)  # whatever else the machine does for a moment
    model = MCAN(settings.model, vocabulary=words, answers=answers, cells=(height, width), features=dim)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    own = sum(p.numel() * p.element_size() for p in backbone.parameters())
    features = height * width * dim * 2 * (pictures - stored)
    networks = own + weights * _KEPT_CHECKPOINTS * _STATE
    disk = features + max(0, networks - present) + 5_000_000
    task = Answering(model, settings, {}).to(device)
    per_step = _step_seconds(task, settings, plan, (height, width, dim), words, answers)
    return Estimate(each * (pictures - stored), per_step * plan.steps * settings.accumulate, disk)


def _step_seconds(
    task: Answering, settings: TrainSettings, plan: TrainingPlan, shape: tuple[int, int, int], words: int, answers: int
) -> float:
    """Seconds of one batch."""
    questions = settings.batch
    pictures = plan.batch if settings.grouped else questions
    batch = {
        "features": torch.zeros(pictures, *shape).normal_(),
        "words": torch.randint(2, max(3, words), (questions, settings.model.tokens)),
        "rows": torch.arange(questions) % pictures,
        "targets": torch.zeros(questions, answers),
    }
    device = next(task.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    optimizer = task.optimizer()
    times = []
    for _ in range(_STEPS):
        finish(device)
        start = time.perf_counter()
        loss, _ = task.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        finish(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
