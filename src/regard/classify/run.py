"""The whole way from labelled pictures to a classifier, its accuracy on held-out ones, and where it looked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard.answering.choice import BackboneChoice, choose_backbone
from regard.backbones import Backbone, load_backbone, make_backbone, save_backbone
from regard.classify.estimate import estimate_heads
from regard.classify.evaluate import ObjectMasks
from regard.classify.features import LabelledNames, named_pictures, split_names, usable_names
from regard.classify.folder import ClassifierFolder, ClassifierSource
from regard.classify.measure import measure_pools
from regard.classify.pools import AVERAGE_NAME
from regard.classify.report import ClassifierReport, write_classifier_report
from regard.classify.settings import ClassifierSettings
from regard.classify.summary import ClassifierSummary
from regard.classify.train import length_of, train_head
from regard.pictures import read, squeezed
from regard.swav._finetune import labelled_data
from regard.swav._labelled import Labelled, open_labelled
from regard.training import Running
from regard.training._device import choose_device
from regard.training._progress import counted
from regard.vqa.features import FeatureStore, kept_backbone, make_features
from regard.vqa.records import Skipped

_TIMED = 4  # pictures that the backbone is timed on
_FEW = 10  # pictures of a class, below which a warning is worth its line


@dataclass(frozen=True)
class ClassifierOutcome:
    """The result: the folder of the run, its summary on held-out pictures, the report, and the seconds it took.

    >>> list(ClassifierOutcome.__annotations__)
    ['folder', 'summary', 'report', 'seconds']
    """

    folder: ClassifierFolder
    summary: ClassifierSummary
    report: ClassifierReport
    seconds: float


def train_classifier(
    data: Any,
    out: Path | str,
    settings: ClassifierSettings | None = None,
    *,
    test: Any = None,
    masks: Path | str | None = None,
    backbone: str | None = None,
    size: int | None = None,
    running: Running | None = None,
    say: Callable[[str], None] = print,
) -> ClassifierOutcome:
    """Train a classifier on labelled pictures, evaluate it on held-out ones beside average pooling, and write a report.

    Features are made once by a frozen backbone; a further pool in the same folder takes them from there, and joins the
    summary and the report. Every step resumes: rerun after a stop. A folder of other pictures, or of another command,
    is refused.

    `data`: a folder with a folder of pictures for each class, or with the folders train and val of these; or a source
        of `regard.pictures` with labels.
    `out`: the folder of the run.
    `settings`: of the pool and its training; default `ClassifierSettings()`.
    `test`: labelled pictures to test on; default None, those in val, else a share of each class, drawn and stored.
    `masks`: a folder of masks of the objects, called as the pictures; default None.
    `backbone`: what makes the features, as `make_backbone` takes it; default the best one on this machine.
    `size`: the side that pictures are resized to, in pixels; default that of the backbone.
    `running`: device, precision, whether to resume; default `Running()`.
    `say`: called with each sentence about what was found and what is done; default print.

    >>> import tempfile
    >>> from regard.pictures import Arrays
    >>> light = torch.tensor([0.0, 0.7]).repeat(20).view(-1, 1, 1, 1) + 0.3 * torch.rand(40, 3, 8, 8)
    >>> quiet = {"running": Running(progress=False), "say": lambda sentence: None}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     data = Arrays(light, [0, 1] * 20, ["dark", "light"])
    ...     done = train_classifier(data, out, ClassifierSettings(epochs=5), backbone="small", size=16, **quiet)
    >>> list(done.summary.results), sum(done.summary.tested)
    (['continuous-softmax', 'average'], 8)
    """
    start, folder = time.monotonic(), ClassifierFolder(Path(out))
    settings, running = settings or ClassifierSettings(), running or Running()
    labelled = open_labelled(data, test)
    pictures = named_pictures(labelled)
    folder.check_own()
    earlier = folder.read_source() if running.resume else None
    described = labelled_data(labelled)
    if earlier is not None and (written := folder.read_data()) is not None and written != described:
        raise Problem(
            f"{folder.path} was made from {written}, and this is {described}. Name another folder with --out, or start "
            "over: --fresh"
        )
    split = (folder.read_split() if earlier is not None else None) or labelled.split(
        settings.held_out, 1.0, settings.seed
    )
    learn, held_out = split_names(labelled, split)
    classes = tuple(labelled.learn.classes)
    for sentence in _found(labelled, learn, held_out, pictures):
        say(sentence)
    choice = _chosen(folder, earlier, backbone)
    for sentence in choice.sentences:
        say(sentence)
    network = _made(folder, running.resume and earlier is not None, choice, backbone, size, settings.seed)
    device = choose_device(running.device, needs_float64=True)
    network.to(device)
    if masks is not None:
        ObjectMasks(Path(masks), held_out.names, Skipped())  # a wrong folder is said before anything is made
    wanted = _pools(settings)
    _say_length(folder, pictures, choice, network, wanted, len(learn), len(classes), say)
    source = ClassifierSource(
        str(data) if isinstance(data, str | Path) else described.text,
        choice.name,
        choice.about,
        choice.untrained,
        choice.stages,
        classes,
        settings.pool,
    )
    with writing_to(folder.path), disk_in_words(folder.path, folder.kept):
        if not running.resume:
            folder.begin_afresh()
        folder.write_data(described)
        folder.write_split(split)
        if not folder.has_backbone:
            save_backbone(network, folder.backbone)
        folder.write_config((earlier or source).config)
        store, skipped = _stored(folder, pictures, choice, network, running.progress)
        learn, held_out = usable_names(store, learn, held_out, skipped)
        if skipped:
            say(str(skipped))
            folder.write_broken({sentence: kind for kind, sentence in skipped.notes})
        fitted = {}
        for each in wanted:
            fitted[each.pool] = train_head(folder.head(each.pool), store, learn, len(classes), each, running)[1]
        folder.write_config(source.config)
        measured = measure_pools(folder, store, (learn, held_out), labelled.drawn, masks, fitted, skipped, device)
        folder.write_summary(measured.summary)
        report = write_classifier_report(folder.path, _shown(held_out, pictures, classes), measured.mistakes)
    return ClassifierOutcome(folder, measured.summary, report, time.monotonic() - start)


def _pools(settings: ClassifierSettings) -> list[ClassifierSettings]:
    """The pool that was asked for, and average pooling to compare it with."""
    average = replace(settings, pool=AVERAGE_NAME)
    return [settings] if settings == average else [settings, average]


def _found(
    labelled: Labelled, learn: LabelledNames, held_out: LabelledNames, pictures: dict[str, Path | Tensor]
) -> list[str]:
    """What was found, and what is worth a warning."""
    counts = Counter(learn.labels)
    least, most = min(counts.values()), max(counts.values())
    each = f"{least}" if least == most else f"{least} to {most}"
    how = "drawn from them" if labelled.drawn else "given"
    lines = [
        f"{len(learn)} pictures of {len(counts)} classes to learn from, {each} each; {len(held_out)} held out, {how}"
    ]
    if least < _FEW:
        names = ", ".join(labelled.learn.classes[i] for i in sorted(counts) if counts[i] < _FEW)[:80]
        lines.append(f"warning: fewer than {_FEW} pictures to learn from are few for a class: {names}")
    if warning := squeezed(path for path in pictures.values() if isinstance(path, Path)):
        lines.append(f"warning: {warning}")
    return lines


def _chosen(folder: ClassifierFolder, earlier: ClassifierSource | None, backbone: str | None) -> BackboneChoice:
    """The backbone asked for, else the one of an earlier start, else the best on this machine."""
    if backbone is None and earlier is not None:
        return BackboneChoice(earlier.backbone, earlier.about, earlier.untrained, earlier.stages)
    return choose_backbone(backbone, folder.path.parent)


def _made(
    folder: ClassifierFolder, resume: bool, choice: BackboneChoice, backbone: str | None, size: int | None, seed: int
) -> Backbone:
    """The backbone of an earlier start, which must be the one asked for now, if any is; else a new one, unsaved."""
    if resume and folder.has_backbone:
        if backbone is None and size is None:
            return load_backbone(folder.backbone)
        return kept_backbone(folder.backbone, choice.name, size, None if choice.untrained else seed)[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_backbone(choice.name, size=size)


def _say_length(
    folder: ClassifierFolder,
    pictures: dict[str, Path | Tensor],
    choice: BackboneChoice,
    network: Backbone,
    wanted: list[ClassifierSettings],
    learned: int,
    classes: int,
    say: Callable[[str], None],
) -> None:
    """Say how long it will take and how much disk it needs; a Problem if there is too little, or nothing to read."""
    timed = []
    for picture in pictures.values():
        try:
            timed.append(network.prepare((read(picture) if isinstance(picture, Path) else picture)[None]))
        except Problem:
            continue
        if len(timed) == _TIMED:
            break
    if not timed:
        raise Problem(f"none of the {len(pictures)} pictures can be read. Check the files.")
    try:
        store = FeatureStore.open(folder.features)
        done = sum(map(store.has, store.names))
    except Problem:
        done = 0
    ahead = [each for each in wanted if not folder.head(each.pool).is_done]
    expected = estimate_heads(network, choice.stages, torch.cat(timed), ahead, len(pictures), done, learned, classes)
    epochs, steps = length_of(wanted[0], learned)
    say(f"{' and '.join(each.pool for each in wanted)}, {epochs} epochs, {steps} steps: {expected}")
    expected.check_space(folder.path)


def _stored(
    folder: ClassifierFolder,
    pictures: dict[str, Path | Tensor],
    choice: BackboneChoice,
    network: Backbone,
    shown: bool,
) -> tuple[FeatureStore, Skipped]:
    """The features of all pictures."""
    return make_features(
        folder.features,
        pictures,
        network,
        name=str(folder.backbone.resolve()),
        stages=choice.stages,
        progress=counted("picture", shown),
        untrained=choice.untrained,
    )


def _shown(
    held_out: LabelledNames, pictures: dict[str, Path | Tensor], classes: tuple[str, ...]
) -> list[tuple[str, Path | Tensor, str]]:
    """The held-out pictures: name, picture, class."""
    pairs = zip(held_out.names, held_out.labels, strict=True)
    return [(name, pictures[name], classes[label]) for name, label in pairs]
