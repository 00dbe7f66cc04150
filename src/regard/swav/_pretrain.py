"""`pretrain`: from pictures to a backbone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard._ranks import is_first
from regard.backbones import Backbone, make_backbone, save_backbone
from regard.pictures import Arrays, Pictures, as_pictures, square, take
from regard.pictures._digest import content_parts, described
from regard.swav._canvases import Canvases
from regard.swav._diagnose import Watch
from regard.swav._evaluate import calibrated
from regard.swav._folder import PretrainingFolder
from regard.swav._model import Swav
from regard.swav._notes import noted
from regard.swav._presets import preset as named
from regard.swav._queue import world
from regard.swav._settings import Crops, Settings, checked
from regard.training import FitSettings, Fitted, Order, Running, cosine, fit, latest
from regard.training._data import DataDescription
from regard.training._device import choose_device, computing_on
from regard.training._fit import restore
from regard.training._norm import BatchNorm
from regard.training._setting import changed


class CollapseWarning(UserWarning):
    """A warning that a run collapses, or will.

    >>> issubclass(CollapseWarning, UserWarning)  # so that warnings.simplefilter("error", CollapseWarning) stops a run
    True
    """


@dataclass(frozen=True)
class Pretraining:
    """A finished run: its `folder`, the folder of the `backbone`, the trained task, steps and speed, broken files.

    >>> [name for name in Pretraining.__annotations__]
    ['folder', 'backbone', 'task', 'fitted', 'broken', 'first']
    """

    folder: PretrainingFolder
    backbone: Path
    task: Swav
    fitted: Fitted
    broken: dict[str, str]
    first: bool  # whether this process is the first


def pretrain(
    pictures: Any,
    *,
    out: Path | str,
    preset: str = "small",
    settings: Settings | None = None,
    running: Running | None = None,
    **changes: Any,
) -> Path:
    """Pretrain a backbone on pictures without labels, and return the folder that `load_backbone` takes.

    Rerun with the same `out` and pictures to resume; a folder with a run on other pictures is a Problem.

    `pictures`: a path, the URL of shards, a tensor (N, 3, H, W) of bytes or a source of `regard.pictures`.
    `out`: the folder of the run.
    `preset`: the name of a preset of settings; default "small".
    `settings`: settings in place of a preset; default None.
    `running`: devices, precision, log, progress; default `regard.training.Running()`.
    `changes`: values of single settings, such as steps=300, prototypes=60.

        folder = pretrain(torch.randint(0, 256, (500, 3, 80, 80), dtype=torch.uint8), preset="scenes", out="out/scenes")

    >>> import tempfile
    >>> from regard.backbones import load_backbone
    >>> x = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    >>> tiny = {"widths": [4], "depths": [1]}
    >>> quiet = Running(progress=False)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     folder = pretrain(x, out=out, steps=1, batch_size=8, prototypes=4, backbone_options=tiny, running=quiet)
    ...     load_backbone(folder).dim
    4
    """
    return run(pictures, out=out, preset_name=preset, settings=settings, running=running, **changes).backbone


def run(
    pictures: Any,
    *,
    out: Path | str,
    preset_name: str = "small",
    settings: Settings | None = None,
    running: Running | None = None,
    after_step: Callable[[int], None] | None = None,
    **changes: Any,
) -> Pretraining:
    """As `pretrain`, but returns the whole run.

    `pictures`, `out`, `settings`, `running`, `changes`: as in `pretrain`.
    `preset_name`: the `preset` of `pretrain`.
    `after_step`: as in `regard.training.fit`; default None.

    >>> import tempfile
    >>> x = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    >>> tiny = {"widths": [4], "depths": [1]}
    >>> quiet = Running(progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = run(x, out=folder, steps=1, batch_size=8, prototypes=4, backbone_options=tiny, running=quiet)
    >>> done.fitted.steps, done.broken
    (1, {})
    """
    source = as_pictures(pictures)
    running = running or Running()
    settings = named(preset_name, **changes) if settings is None else checked(changed(settings, changes))
    folder = PretrainingFolder(Path(out))
    task = build(settings)
    side = canvas(settings, source)
    order = Order(len(source), settings.batch_size, settings.seed)
    batch = order.batch_size
    if settings.codes != "sinkhorn" and order.per_epoch * batch < settings.prototypes:
        raise Problem(
            f"{order.per_epoch * batch} pictures per epoch cannot be assigned to {settings.prototypes} prototypes by "
            f"{settings.codes}. Take fewer prototypes, or more pictures."
        )
    for warning in before(settings, batch):
        warnings.warn(warning, CollapseWarning, stacklevel=3)
    watch = Watch(settings.prototypes, settings.dim, patience=max(100, 2 * settings.freeze))

    def warn(step: int, values: dict[str, float]) -> None:
        for warning in watch(values, step):
            warnings.warn(warning, CollapseWarning, stacklevel=2)

    fit_settings = FitSettings(
        steps=settings.steps,
        batch_size=settings.batch_size,
        seed=settings.seed,
        schedule=schedule_of(settings),
        accumulate=settings.accumulate,
        clip=settings.clip,
        norm_processes=settings.norm_processes,
    )
    canvases = Canvases(source, side, keep=not running.workers, mixed=settings.mixed_shards)
    data = DataDescription.of(described(source), content_parts(source))
    with writing_to(folder.path), disk_in_words(folder.path, folder.kept):
        if running.resumes and folder.is_begun:
            folder.check_data(data)
        elif is_first():
            folder.begin_afresh()
        if is_first():
            folder.write_data(data)
        with noted(task, folder, canvases.faults, source):
            fitted = fit(
                task, canvases, fit_settings, out=folder.path, running=running, after_step=after_step, on_log=warn
            )
            if _windows(settings):
                with computing_on(task.backbone, choose_device(running.device)):
                    _recalibrate(task.backbone, source)
        first = world()[0] == 0
        if first:
            save_backbone(task.backbone, folder.backbone)
            folder.write_config(task.config)
            task.notes.finish()
    return Pretraining(folder, folder.backbone, task.eval(), fitted, task.notes.broken, first)


def schedule_of(settings: Settings) -> Callable[[int], float]:
    """The factor of the learning rate of each step: warm-up from `warmup_start`, then a cosine to `final_lr`."""
    start = settings.warmup_start
    return cosine(
        settings.steps,
        min(settings.warmup, settings.steps // 4),
        end=settings.final_lr / settings.lr,
        first=None if start is None else start / settings.lr,
    )


def build(settings: Settings) -> Swav:
    """The task of a run, with initial weights by the seed of the settings."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        backbone = make_backbone(
            settings.backbone,
            size=_whole_size(settings),
            nonlocal_after=settings.nonlocal_after,
            nonlocal_affinity=settings.nonlocal_affinity or "embedded_gaussian",
            **({"pretrained": settings.pretrained} if not settings.backbone.startswith("small") else {}),
            **settings.backbone_options,
        )
        return Swav(backbone, settings)


def _recalibrate(backbone: Backbone, source: Pictures, most: int = 2560) -> None:
    """Measure the running statistics of the batch norms on whole pictures, in place of those of windows.

    `most`: at most so many pictures; default 2560. Called in every process, on the same pictures: synchronised norms
    wait for each other.
    """
    norms = [m for m in backbone.modules() if isinstance(m, BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
    count, size = min(len(source), most), backbone.preparation.size
    sample = [square(take(source, i * len(source) // count).picture, size) for i in range(count)]
    calibrated(backbone, torch.stack(sample))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _windows(settings: Settings) -> bool:
    """Whether views are cut from windows, not from whole pictures."""
    return settings.crops.window != (1.0, 1.0)


def _whole_size(settings: Settings) -> int:
    """The side in pixels of whole pictures for the backbone: the canvas, or that at which a mean window is a view."""
    if _windows(settings) and settings.canvas:
        return settings.canvas
    return round(settings.crops.size / math.sqrt(sum(settings.crops.window) / 2))


def load_pretraining(out: Path | str) -> Swav:
    """The task of a run from its newest checkpoint: backbone, projection and prototypes.

    >>> load_pretraining("nowhere")
    Traceback (most recent call last):
    regard._problem.Problem: nowhere has no checkpoint. ...
    """
    checkpoint = latest(out)
    if checkpoint is None:
        raise Problem(f"{out} has no checkpoint. Name the folder of a run: regard pretrain --out FOLDER")
    try:
        values: dict[str, Any] = dict(checkpoint.config["settings"])
        crops: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.pop("crops").items()}
        settings = Settings(crops=Crops(**crops), **values)
    except (KeyError, TypeError) as error:
        raise Problem(f"{checkpoint.folder} is not a pretraining run ({error}). Name another folder.") from error
    task = build(settings)
    restore(task, checkpoint)
    return task.eval()


def canvas(settings: Settings, source: Pictures) -> int:
    """The side that pictures are resized to: `settings.canvas`, or what suits them and the views."""
    return settings.canvas or canvas_for(source, settings.crops.size)


def canvas_for(source: Pictures, size: int) -> int:
    """The side that pictures are resized to for views of `size`: theirs if small and square, else 1.5 views."""
    if isinstance(source, Arrays):
        height, width = source.pictures.shape[-2:]
        if height == width and size // 2 <= width <= 2 * size:
            return int(width)
    return size * 3 // 2


def before(settings: Settings, batch: int) -> list[str]:
    """Warnings about settings, before the first step."""
    texts = []
    samples = batch + settings.queue
    if samples < settings.prototypes and settings.codes == "sinkhorn":
        texts.append(
            f"{samples} samples share {settings.prototypes} prototypes: codes cannot be even. Take fewer prototypes, "
            "a larger batch, or a queue."
        )
    if 0 < settings.queue < batch:
        texts.append(f"a queue of {settings.queue} is shorter than a batch of {batch}. Make it several batches, or 0.")
    return texts
