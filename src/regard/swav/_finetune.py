"""Fine-tuning of a backbone with a linear layer on labelled pictures, and linear evaluation, as published for SwAV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard._ranks import is_first
from regard.backbones import Backbone, load_backbone, save_backbone
from regard.pictures import square
from regard.pictures._digest import content_parts, described
from regard.swav._evaluate import Proportion
from regard.swav._finetune_settings import FinetuneSettings, checked_finetuning, finetune_preset
from regard.swav._finetune_task import FineTune, LabelledCanvases
from regard.swav._folder import FinetuningFolder
from regard.swav._labelled import Labelled, LabelSplit, Subset, open_labelled
from regard.swav._notes import noted
from regard.swav._pretrain import canvas_for
from regard.swav._queue import world
from regard.training import FitSettings, Fitted, Order, Running, cosine, fit
from regard.training._data import DataDescription
from regard.training._device import choose_device, computing_on
from regard.training._fit import restore
from regard.training._setting import changed

_BATCH = 256  # pictures that are tested at a time
_FALLS, _FALL = (0.6, 0.8), 0.2  # after these shares of the epochs learning rates are multiplied by this


@dataclass(frozen=True)
class Finetuning:
    """A finished fine-tuning: its `folder`, the trained `task`, and the accuracy on held-out pictures.

    >>> [name for name in Finetuning.__annotations__][:5]
    ['folder', 'task', 'accuracy', 'commonest', 'split']
    """

    folder: FinetuningFolder
    task: FineTune
    accuracy: Proportion
    commonest: Proportion  # that of always answering the commonest class that was learned from
    split: LabelSplit
    drawn: bool  # whether the held-out pictures were drawn from those given
    per_class: tuple[int, int]  # least and most pictures of a class that were learned from
    fitted: Fitted
    first: bool  # whether this process is the first

    def table(self) -> str:
        """The result as text."""
        learned, labelled, tested = len(self.split.learn), self.split.labelled, self.accuracy.count
        least, most = self.per_class
        each = f"{least}" if least == most else f"{least} to {most}"
        held_out = "drawn" if self.drawn else "given"
        return "\n".join(
            [
                f"{'accuracy':<20}{self.accuracy}",
                f"{'commonest class':<20}{self.commonest}",
                f"learned from {learned} of {labelled} labelled pictures, {each} of each of "
                f"{len(self.task.classes)} classes; {tested} held out ({held_out}); 95 % intervals",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        numbers = {"accuracy": self.accuracy.share, "interval": self.accuracy.interval}
        counts = {"learned": len(self.split.learn), "labelled": self.split.labelled, "tested": self.accuracy.count}
        return {**numbers, "commonest": self.commonest.share, **counts, "per_class": self.per_class}


def finetune(
    backbone: Backbone | Path | str,
    data: Any,
    *,
    out: Path | str,
    test: Any = None,
    preset: str = "whole",
    settings: FinetuneSettings | None = None,
    running: Running | None = None,
    **changes: Any,
) -> Finetuning:
    """Train a backbone with a linear layer on labelled pictures, and test it on held-out ones; rerun to resume.

    `backbone`: a backbone, which is changed in place, or what `load_backbone` takes.
    `data`: a path, a tensor or a source of `regard.pictures`, with labels; a folder with the folders train and val is
        split already.
    `out`: the folder of the run.
    `test`: pictures to test on; default None, those in val, else a share of each class that is drawn and stored.
    `preset`: "whole" (default), "10-percent", "1-percent" or "linear".
    `settings`: settings in place of a preset; default None.
    `running`: devices, precision, log, progress; default `regard.training.Running()`.
    `changes`: values of single settings, such as labels=0.1, epochs=5.

    >>> import tempfile
    >>> from regard.backbones import make_backbone
    >>> from regard.pictures import Arrays
    >>> light = torch.tensor([0.0, 0.7]).repeat(20).view(-1, 1, 1, 1) + 0.3 * torch.rand(40, 3, 8, 8)
    >>> tiny = make_backbone("small", widths=[4], depths=[1], size=8)
    >>> quiet = Running(progress=False)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     done = finetune(tiny, Arrays(light, [0, 1] * 20), out=out, epochs=2, batch_size=8, running=quiet)
    >>> done.accuracy.count, len(done.split.learn)
    (8, 32)
    """
    running = running or Running()
    chosen = finetune_preset(preset, **changes) if settings is None else checked_finetuning(changed(settings, changes))
    labelled = open_labelled(data, test)
    backbone = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
    folder = FinetuningFolder(Path(out))
    described_data = labelled_data(labelled)
    with writing_to(folder.path), disk_in_words(folder.path, folder.kept):
        split = None
        if running.resumes and folder.is_begun:
            folder.check_data(described_data)
            split = folder.read_split()
        elif is_first():
            folder.begin_afresh()
        split = split or labelled.split(chosen.held_out, chosen.labels, chosen.seed)
        if is_first():
            folder.write_data(described_data)
            folder.write_split(split)
        learn = Subset(labelled.learn, split.learn)
        held_out = Subset(labelled.test, split.test, learn.classes)
        task = FineTune(backbone, learn.classes, chosen)
        side = chosen.canvas or canvas_for(labelled.learn, backbone.preparation.size)
        canvases = LabelledCanvases(learn, side, keep=not running.workers)
        labels = learn.labels or []
        counts = Counter(labels)
        with noted(task, folder, canvases.faults, labelled.learn):
            fitted = fit(task, canvases, _fit_settings(chosen, len(learn)), out=folder.path, running=running)
            with computing_on(task, choose_device(running.device)):
                accuracy = held_out_accuracy(task.eval(), held_out)
        first = world()[0] == 0
        result = Finetuning(
            folder,
            task,
            accuracy,
            _commonest(counts, held_out),
            split,
            labelled.drawn,
            (min(counts.values()), max(counts.values())),
            fitted,
            first,
        )
        if first:
            save_backbone(backbone, folder.backbone)
            folder.write_config(task.config)
            folder.write_evaluation(result.as_dict())
            task.notes.finish()
    return result


def load_finetuned(out: Path | str) -> FineTune:
    """The network of a finished fine-tuning: backbone, linear layer and names of classes.

    >>> load_finetuned("nowhere")
    Traceback (most recent call last):
    regard._problem.Problem: nowhere has no finished fine-tuning. ...
    """
    folder = FinetuningFolder(Path(out))
    checkpoint = folder.latest()
    if checkpoint is None or not folder.has_backbone:
        raise Problem(f"{out} has no finished fine-tuning. Name the folder of a run: regard finetune --out FOLDER")
    config = checkpoint.config
    try:
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in config["settings"].items()}
        task = FineTune(load_backbone(folder.backbone), list(config["classes"]), FinetuneSettings(**values))
        task.origin = config["origin"]  # of the weights that the run began with
    except (KeyError, TypeError) as error:
        raise Problem(f"{checkpoint.folder} is not a fine-tuning ({error}). Name another folder.") from error
    restore(task, checkpoint)
    return task.eval()


def held_out_accuracy(task: FineTune, pictures: Subset) -> Proportion:
    """The share of pictures whose class is right; those that cannot be read are left out."""
    size = task.backbone.preparation.size
    labels = pictures.labels or []
    right = count = 0
    for start in range(0, len(pictures), _BATCH):
        readable: list[tuple[Tensor, int]] = []
        for i in range(start, min(start + _BATCH, len(pictures))):
            try:
                readable.append((square(pictures[i], size), labels[i]))
            except Problem as problem:
                task.notes.add({pictures.name(i): str(problem)})
        if readable:
            found = task.probabilities(torch.stack([picture for picture, _ in readable])).argmax(-1)
            right += int((found == torch.tensor([label for _, label in readable])).sum())
            count += len(readable)
    if not count:
        raise Problem("none of the held-out pictures can be read. Check the files.")
    return Proportion(right, count)


def _commonest(counts: Counter[int], held_out: Subset) -> Proportion:
    """The share of held-out pictures that are of the commonest class among those that were learned from."""
    most = min(counts, key=lambda label: (-counts[label], label))
    labels = held_out.labels or []
    return Proportion(labels.count(most), len(labels))


def _fit_settings(settings: FinetuneSettings, samples: int) -> FitSettings:
    """Steps and schedule of a fine-tuning on so many pictures."""
    per_epoch = Order(samples, settings.batch_size, settings.seed).per_epoch
    steps = settings.epochs * per_epoch
    schedule = cosine(steps) if settings.schedule == "cosine" else falling(settings.epochs, per_epoch)
    return FitSettings(steps, settings.batch_size, settings.seed, schedule)


def falling(epochs: int, per_epoch: int) -> Callable[[int], float]:
    """A schedule, from a step to the factor of the learning rates: times 0.2 after 60 % and after 80 % of the epochs.

    >>> [round(falling(20, per_epoch=3)(3 * epoch), 3) for epoch in (0, 11, 12, 15, 16, 19)]
    [1.0, 1.0, 0.2, 0.2, 0.04, 0.04]
    """
    falls = [round(share * epochs) * per_epoch for share in _FALLS]
    return lambda step: _FALL ** sum(step >= fall for fall in falls)


def labelled_data(labelled: Labelled) -> DataDescription:
    """What a run is trained and tested on."""
    sources = [labelled.learn] if labelled.drawn else [labelled.learn, labelled.test]
    parts = [part for source in sources for part in (*content_parts(source), source.labels, source.classes)]
    return DataDescription.of(" and ".join(described(source) for source in sources), parts)
