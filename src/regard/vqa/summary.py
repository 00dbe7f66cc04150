"""The summary of a run: how well it answers questions about new pictures, compared with not looking at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy
from numpy.typing import NDArray

from regard import _check
from regard._problem import Problem
from regard.vqa.accuracy import Accuracy
from regard.vqa.baseline import majority, question_only
from regard.vqa.evaluate import Evaluation, accuracy_of
from regard.vqa.question_groups import OTHERS, Grouping, choose_grouping, group_of, shown_groups
from regard.vqa.read import write_results
from regard.vqa.records import Record, Records
from regard.vqa.resampling import resampled_interval
from regard.vqa.results import RESULTS_FOLDER, Results

if TYPE_CHECKING:
    from regard.vqa.folder import AnsweringFolder
    from regard.vqa.store import Run

QUESTION_ALONE, MOST_FREQUENT = "question alone", "most frequent answer"


@dataclass(frozen=True)
class GroupSummary:
    """The questions of one type: how many, the accuracy in percent, and that of each baseline by name.

    >>> GroupSummary("what colour", 20, 80.0, {"question alone": 40.0, "most frequent answer": 30.0}).best_baseline
    ('question alone', 40.0)
    """

    name: str
    questions: int
    accuracy: float
    baselines: dict[str, float]

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and accuracy of the best baseline; None without baselines."""
        return max(self.baselines.items(), key=lambda entry: entry[1], default=None)


@dataclass(frozen=True)
class RunSummary:
    """What the head of a report says about a run. Accuracies are in percent.

    data                  the name of the data
    split                 the name of its part that was held out
    questions, pictures   held out, with answers
    train_questions, train_pictures    trained on
    accuracy              on the held-out questions
    interval              95 %, by resampling pictures with all their questions (`resampled_interval`)
    baselines             the accuracy of answering without the picture, by name
    gain                  95 % interval of the accuracy less that of the best baseline; None without baselines
    grouping              what `groups` are: question type, answer type or first words
    groups                accuracy by type, the commonest first
    attention             the kind of output attention, by name
    backbone              in words
    untrained             whether the weights of the backbone are random; None if that is unknown
    left_out              sentences on what was not counted
    seconds               of training; None if unknown

    >>> summary = RunSummary("pets", "test", 100, 20, 400, 80, 82.0, (79.0, 85.0), {"question alone": 47.0})
    >>> summary.sentence
    'Of 100 questions about new pictures it answers 82 right (79 to 85); from the question alone one gets 47.'
    >>> RunSummary.from_json(summary.to_json()) == summary
    True
    """

    data: str
    split: str
    questions: int
    pictures: int
    train_questions: int
    train_pictures: int
    accuracy: float
    interval: tuple[float, float]
    baselines: dict[str, float]
    gain: tuple[float, float] | None = None
    grouping: Grouping = "question type"
    groups: tuple[GroupSummary, ...] = ()
    attention: str = ""
    backbone: str = ""
    untrained: bool | None = None
    left_out: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def sentence(self) -> str:
        """The accuracy, its interval and the baselines, in words."""
        low, high = self.interval
        digits = 0 if high - low >= 3 else 1
        right, least, most = (f"{value:.{digits}f}" for value in (self.accuracy, low, high))
        text = f"Of 100 questions about new pictures it answers {right} right ({least} to {most})"
        words = {QUESTION_ALONE: "from the question alone one gets", MOST_FREQUENT: "with the most frequent answer"}
        others = [f"{words.get(name, name)} {value:.{digits}f}" for name, value in self.baselines.items()]
        return text + "".join(f"{';' if i == 0 else ','} {part}" for i, part in enumerate(others)) + "."

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; a ValueError, KeyError or TypeError if it is something else."""
        content = dict(written)
        content["groups"] = tuple(GroupSummary(**group) for group in content["groups"])
        content["left_out"] = tuple(map(str, content["left_out"]))
        low, high = map(float, content["interval"])
        content["interval"] = (low, high)
        if content["gain"] is not None:
            least, most = map(float, content["gain"])
            content["gain"] = (least, most)
        _check.choice("grouping", content["grouping"], get_args(Grouping))
        numbers = [
            content["accuracy"],
            *content["baselines"].values(),
            *(group.accuracy for group in content["groups"]),
        ]
        if not all(isinstance(value, int | float) for value in numbers):
            raise TypeError("a number was expected")
        return cls(**content)


def summarise(
    run: Run,
    train: Records,
    test: Records,
    evaluation: Evaluation,
    *,
    data: str,
    baselines: Mapping[str, Accuracy] | None = None,
    untrained: bool | None = None,
    left_out: Sequence[str] = (),
    seconds: float | None = None,
) -> RunSummary:
    """The summary of a run, from its evaluation on held-out records.

    `run`: the trained model.
    `train`: the records that it was trained on.
    `test`: the held-out records; those that have answers and a prediction count.
    `evaluation`: of the run on `test`.
    `data`: the name of the data, as a reader knows it.
    `baselines`: accuracies on `test` without the picture, by name; default those of `question_only` and `majority`.
    `untrained`: whether the weights of the backbone are random; default None, unknown.
    `left_out`: further sentences on what was left out; those on skipped records are added to them.
    `seconds`: of training; default None, unknown.
    """
    tested = [record for record in test.records if record.answers and record.id in evaluation.predictions]
    trained = [record for record in train.records if record.answers]
    if not tested:
        raise Problem(
            f"no question of {test.name} has both an answer and a prediction. Evaluate on a split with answers."
        )
    if baselines is None:
        baselines = {QUESTION_ALONE: question_only(trained, tested), MOST_FREQUENT: majority(trained, tested)}
    right = _scores(accuracy_of(tested, evaluation.predictions), tested)
    others = {name: _scores(accuracy, tested) for name, accuracy in baselines.items()}
    names = [record.picture for record in tested]
    best = max(others.values(), key=lambda scores: float(scores.mean()), default=None)
    by = choose_grouping(tested)
    return RunSummary(
        data=data,
        split=test.name,
        questions=len(tested),
        pictures=len(set(names)),
        train_questions=len(trained),
        train_pictures=len({record.picture for record in trained}),
        accuracy=float(right.mean()),
        interval=resampled_interval(right, names),
        baselines={name: float(scores.mean()) for name, scores in others.items()},
        gain=None if best is None else resampled_interval(right - best, names, lowest=-100.0),
        grouping=by,
        groups=_groups(tested, by, right, others),
        attention=evaluation.attention,
        backbone=_backbone_in_words(run),
        untrained=untrained,
        left_out=(*left_out, *_skipped_in_words(train), *_skipped_in_words(test)),
        seconds=seconds,
    )


def keep_summary(folder: AnsweringFolder, summary: RunSummary, evaluation: Evaluation) -> None:
    """Write a summary into a run, and beside it the numbers and answers of its evaluation, as `regard evaluate` does.

    `folder`: of the run; gets summary.json, evaluation/SPLIT.json and evaluation/SPLIT_results.json. Numbers of other
        attentions that are there stay.
    `summary`: of the evaluation.
    `evaluation`: the predictions by question.
    """
    place = folder.path / RESULTS_FOLDER
    results = Results.of(summary.split, {evaluation.attention: evaluation})
    earlier = Results.beside(folder.path) if any(place.glob("*.json")) else None
    kinds = {} if earlier is None else dict(earlier.splits.get(summary.split, {}))
    Results({summary.split: kinds | dict(results.splits[summary.split])}).write(place)
    write_results(place / f"{summary.split}_results.json", evaluation.predictions.items())
    folder.write_summary(summary)


def _scores(accuracy: Accuracy, records: Sequence[Record]) -> NDArray[numpy.float64]:
    """The accuracy of each record in percent, (n,)."""
    return numpy.array([100 * accuracy.each[record.id] for record in records], dtype=numpy.float64)


def _groups(
    records: Sequence[Record],
    by: Grouping,
    right: NDArray[numpy.float64],
    others: Mapping[str, NDArray[numpy.float64]],
) -> tuple[GroupSummary, ...]:
    named = [group_of(record, by) for record in records]
    shown = shown_groups(named, by)
    each = numpy.array([name if name in shown else OTHERS for name in named], dtype=object)
    masks = {name: each == name for name in shown}
    return tuple(
        GroupSummary(
            name,
            int(mask.sum()),
            float(right[mask].mean()),
            {baseline: float(scores[mask].mean()) for baseline, scores in others.items()},
        )
        for name, mask in masks.items()
    )


def _skipped_in_words(records: Records) -> list[str]:
    """Each kind of skipped record with its number; a record that was met twice counts once."""
    kinds: dict[str, set[str]] = {}
    for kind, sentence in records.skipped.notes:
        kinds.setdefault(kind, set()).add(sentence)
    return [f"{len(sentences)} x {kind} ({records.name})" for kind, sentences in kinds.items()]


def _backbone_in_words(run: Run) -> str:
    """The architecture of the backbone and the size of its pictures; the name it was loaded by if it is not there."""
    try:
        config = run.load_backbone().config
    except Problem:
        return run.features.name
    size = config["preparation"]["size"]
    if config["family"] == "small":
        channels = ", ".join(map(str, config["options"]["widths"]))
        kind = f"a small residual network ({channels} channels)"
    else:
        kind = str(config.get("name") or config.get("class") or "a network of one's own")
    return f"{kind}, pictures of {size} x {size} pixels"
