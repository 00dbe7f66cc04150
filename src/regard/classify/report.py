"""The report of a classifier as one HTML file: its accuracy, where it looks, and held-out pictures."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from torch import Tensor

from regard._files import replacing
from regard._problem import Problem
from regard.classify.folder import ClassifierFolder
from regard.classify.pools import AVERAGE_NAME, parse_pool
from regard.classify.predict import Classifier
from regard.classify.summary import LOOK_MEASURES, ClassifierSummary, Estimated, in_points
from regard.pictures import read
from regard.report import Entry
from regard.report._examples import examples, legend
from regard.report._page import document, listed_facts, untrained_note
from regard.report._plot import accuracy_row
from regard.training._progress import duration

SHOWN_PICTURES, SHOWN_MISTAKES = 18, 6  # at random among all held-out ones; then among those that are named wrong
_BESIDE, _CLASSES = 2, 24  # further pools in a picture's row; classes in the plot


@dataclass(frozen=True)
class ClassifierReport:
    """A report that was written: its file, the number of pictures in it, and its size in bytes.

    >>> print(ClassifierReport(Path("out/pets-classes/report.html"), 24, 1_900_000))
    out/pets-classes/report.html: 24 pictures, 1.9 MB
    """

    path: Path
    pictures: int
    size: int

    def __str__(self) -> str:
        return f"{self.path.as_posix()}: {self.pictures} pictures, {max(0.1, self.size / 1e6):.1f} MB"


def write_classifier_report(
    run: Path | str,
    held_out: Sequence[tuple[str, Path | Tensor, str]],
    mistakes: Collection[str] = (),
    *,
    seed: int = 0,
) -> ClassifierReport:
    """Write the report of a run: its summary, and some held-out pictures with where each pool looked.

    `run`: the folder of the run.
    `held_out`: name, picture and class of each held-out picture.
    `mistakes`: the names of those that are named wrong; default none.
    `seed`: of the choice of pictures; default 0.
    """
    folder = ClassifierFolder(Path(run))
    summary = folder.read_summary()
    if summary is None:
        raise Problem(f"{run} has no summary. Train a classifier in it: regard classify PICTURES --out {run}")
    others = [name for name in summary.results if name not in (summary.pool, AVERAGE_NAME)]
    classifiers = [Classifier.load(run, name) for name in (summary.pool, *others[:_BESIDE])]
    entries = []
    for name, picture, label in _chosen_at_random(held_out, mistakes, seed):
        try:
            pixels = read(picture) if isinstance(picture, Path) else picture
        except Problem:  # it is gone since
            continue
        found = [classifier.classify(pixels) for classifier in classifiers]
        entries.append(Entry(pixels, name, found, [label], label, labelled=True))
    content = document(f"Classes of pictures: {summary.data}", _content(summary, entries)).encode("utf-8", "replace")
    with replacing(folder.report) as beside:
        beside.write_bytes(content)
    return ClassifierReport(folder.report, len(entries), len(content))


def _chosen_at_random(
    held_out: Sequence[tuple[str, Path | Tensor, str]], mistakes: Collection[str], seed: int
) -> list[tuple[str, Path | Tensor, str]]:
    """Some of all pictures, then some of those that are named wrong, each at random."""
    order = list(held_out)
    random.Random(seed).shuffle(order)
    wrong = [one for one in order[SHOWN_PICTURES:] if one[0] in mistakes]
    return order[:SHOWN_PICTURES] + wrong[:SHOWN_MISTAKES]


def _content(summary: ClassifierSummary, entries: list[Entry]) -> str:
    left_out = "".join(f'<li><bdi lang="">{escape(sentence)}</bdi></li>' for sentence in summary.left_out)
    shown = ""
    if entries:
        how = f"{min(SHOWN_PICTURES, len(entries))} held-out pictures drawn at random"
        how += (
            f", then {len(entries) - SHOWN_PICTURES} of those that it names wrong"
            if len(entries) > SHOWN_PICTURES
            else ""
        )
        shown = f"<h2>Pictures</h2>\n<p>{how}.</p>\n{legend()}{examples(entries)}\n"
    return (
        f'<p class="lead">{escape(summary.sentence)}</p>\n{_beside_average(summary)}'
        f"{untrained_note('usually names far more pictures right') if summary.untrained else ''}"
        f"<dl>{listed_facts(_facts_of(summary))}</dl>\n<h2>Accuracy</h2>\n{_pools_plot(summary)}"
        f"{_looks(summary)}<h2>By class</h2>\n{_classes_plot(summary)}"
        f"<h2>What was left out</h2>\n{f'<ul>{left_out}</ul>' if left_out else '<p>Nothing.</p>'}\n{shown}"
    )


def _beside_average(summary: ClassifierSummary) -> str:
    """Whether the pool costs or gains accuracy, in words."""
    difference = summary.results[summary.pool].difference
    if difference is None:
        return ""
    told = in_points(difference)
    if difference.high < 0:
        return (
            f'<p class="note">It is less accurate than average pooling, {told} points; it shows where it looked.</p>\n'
        )
    if difference.low > 0:
        return f"<p>It is more accurate than average pooling, {told} points.</p>\n"
    return f"<p>It is as accurate as average pooling, as far as these pictures can tell: {told} points.</p>\n"


def _facts_of(summary: ClassifierSummary) -> dict[str, str]:
    seconds = summary.results[summary.pool].seconds
    how = "drawn from those given" if summary.drawn else "given as such"
    return {
        "measured on": f"{sum(summary.tested):,} pictures that it did not learn from, {how}",
        "learned from": f"{summary.learned:,} pictures of {len(summary.classes)} classes"
        + ("" if seconds is None else f", in {duration(seconds)}"),
        "pool": parse_pool(summary.pool).label,
        "backbone": summary.backbone,
        "ranges in brackets": "95 % intervals: Wilson's for accuracies, from drawing pictures again for the others.",
    }


def _pools_plot(summary: ClassifierSummary) -> str:
    commonest, rows = 100 * summary.commonest / sum(summary.tested), ""
    for name in summary.results:
        accuracy = summary.accuracy(name)
        low, high = accuracy.interval
        rows += accuracy_row(
            parse_pool(name).label,
            sum(summary.tested),
            100 * accuracy.share,
            commonest,
            (100 * low, 100 * high),
            "commonest",
        )
    return (
        f'<ul class="plot">\n{rows}</ul>\n<p class="soft"><small><i class="key"></i> pictures that are named right, in '
        'percent; <i class="key mark"></i> what one gets with the commonest class. The thin line is the '
        "range that holds the true accuracy with 95 % confidence.</small></p>\n"
    )


def _classes_plot(summary: ClassifierSummary) -> str:
    """The classes that are hardest, beside average pooling."""
    average = summary.results.get(AVERAGE_NAME)
    right = summary.results[summary.pool].by_class
    known = [i for i, count in enumerate(summary.tested) if count]
    order = sorted(known, key=lambda i: (right[i] / summary.tested[i], summary.classes[i]))
    rows = ""
    for i in order[:_CLASSES]:
        beside = (
            None if average is None or summary.pool == AVERAGE_NAME else 100 * average.by_class[i] / summary.tested[i]
        )
        rows += accuracy_row(
            summary.classes[i], summary.tested[i], 100 * right[i] / summary.tested[i], beside, marked="average"
        )
    mark = '; <i class="key mark"></i> with average pooling' if summary.pool != AVERAGE_NAME else ""
    more = f"The {_CLASSES} hardest of {len(known)} classes. " if len(known) > _CLASSES else ""
    return (
        f'<ul class="plot">\n{rows}</ul>\n<p class="soft"><small>{more}<i class="key"></i> pictures of the class that '
        f"are named right, in percent{mark}.</small></p>\n"
    )


def _looks(summary: ClassifierSummary) -> str:
    """How the attention fits the masks, beside what does not look."""
    if summary.area is None:
        return ""
    rows = [(parse_pool(name).label, result.looks) for name, result in summary.results.items() if name != AVERAGE_NAME]
    body = "".join(
        f"<tr><th>{escape(label)}</th>{''.join(_cell(looks.get(m)) for m in LOOK_MEASURES)}</tr>"
        for label, looks in rows
    )
    body += "".join(
        f'<tr class="soft"><th>{name}</th>{"".join(f"<td>{means[m]:.2f}</td>" for m in LOOK_MEASURES)}</tr>'
        for name, means in summary.blind.items()
    )
    head = "".join(f"<th>{m}</th>" for m in LOOK_MEASURES)
    return (
        f"<h2>Where it looks</h2>\n<p>Beside the masks of {summary.masks:,} held-out pictures, whose objects take "
        f"{100 * summary.area:.0f} % of the picture.</p>\n"
        f'<div class="table"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'
        '<p class="soft"><small>mass: the share of the attention on the object; pointing: how often its highest point '
        "is on the object or next to it; divergence: from an even spread over the object, 0 the same, 1 disjoint. An "
        "even spread and a blob in the centre do not look at the picture: what is not above them shows "
        "nothing.</small></p>\n"
    )


def _cell(look: Estimated | None) -> str:
    if look is None:
        return "<td></td>"
    return f"<td>{look.mean:.2f} <small>({look.low:.2f} to {look.high:.2f})</small></td>"
