"""`regard evaluate` for models that answer: accuracy and attention quality on every split but the training one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard._problem import Problem
from regard.pictures import squeezed
from regard.training._progress import duration
from regard.training._together import Together
from regard.vqa.accuracy import Accuracy
from regard.vqa.baseline import answer_baselines
from regard.vqa.blind import blind_quality
from regard.vqa.compare import Comparison
from regard.vqa.evaluate import Evaluation, Means, evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.faithfulness import measure_faithfulness
from regard.vqa.faithfulness_table import faithfulness_table
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.hide_names import HideName
from regard.vqa.hiding import choose_hiding
from regard.vqa.kinds import EVALUATED, Kind, MixtureSelected, parse
from regard.vqa.own import TRAIN, NoSplit, read_own
from regard.vqa.read import check_answers, existing, read_questions, splits_in, write_results
from regard.vqa.records import Record, Records
from regard.vqa.results import Results
from regard.vqa.splits import SPLIT_NAMES
from regard.vqa.store import Run, changed_run, load_run

_USE = "an evaluation"  # what needs answers


def evaluate_run(
    model: Path | str,
    data: Path | str,
    attentions: Sequence[str | Kind] | None = None,
    out: Path | str | None = None,
    pictures: Path | str | None = None,
    regions: Path | str | None = None,
    progress: Callable[[str], None] | None = None,
    changes: Mapping[str, Any] | None = None,
    faithfulness: int = 0,
    hide: HideName | None = None,
    group: Together | None = None,
) -> str:
    """Evaluate a run on every split but the training one, and return the tables as text.

    The tables have two baselines that see no picture, if the data has training rows, and, if regions are known, two
    attentions that do not look (`regard.vqa.blind`). A file without splits is evaluated as a whole; the text says how
    many pictures have names that the model was trained on. Stored features of the training are used if they have all
    pictures, else features are made into the run's folder.

    `model`: the folder of a run or of a saved model.
    `data`: a folder in the form of VQA-v2, a JSONL or a CSV.
    `attentions`: output attentions to evaluate with beside the model's and "mixture-selected"; default `EVALUATED`.
    `out`: a folder to write `SPLIT.json` (numbers, if the split has answers) and `SPLIT_results.json` (answers, as the
        evaluation server takes them) to; default None, nothing is written.
    `pictures`: the folder of the pictures; default None, beside the questions.
    `regions`: the folder of the masks, as `read_questions` takes it; default None.
    `progress`: called with a line before each step; default None.
    `changes`: of the model's settings, those that have no parameters, such as its basis; default None.
    `faithfulness`: hide cells of the pictures of so many questions of each split, and follow the answers
        (`regard.vqa.faithfulness`), with every attention; default 0, not.
    `hide`: what takes the place of a hidden cell, as in `regard.vqa.hiding.choose_hiding`; default None: the mean
        colour of the picture, or if it or the backbone is not at hand the mean feature.
    `group`: processes that share the work, of which the first writes; default None, this one alone.
    """
    group = group or Together()
    run = load_run(model)
    if changes:
        run = changed_run(run, changes)
    run.model.to(group.device)
    trained_with = run.model.attention
    others = EVALUATED if attentions is None else (*map(parse, attentions), MixtureSelected())
    kinds = list(dict.fromkeys(map(str, (trained_with, *others))))
    splits, left_out = _splits(Path(data), pictures, regions, answered=out is None)
    labelled = [any(record.answers for record in records.records) for records in splits]
    train = _training(Path(data), pictures)
    sizes = [len(records) * (len(kinds) if known else 1) for records, known in zip(splits, labelled, strict=True)]
    steps = _Steps(sum(sizes), progress)
    stores = [_store_for(run, records, steps, group) for records in splits]  # all of them before anything is evaluated
    parts = []
    for records, known, store in zip(splits, labelled, stores, strict=True):
        examples = Examples(records, store, run.words, run.answers, run.model.settings.tokens)
        evaluations = {}
        for kind in kinds if known else [trained_with]:
            with steps.step(f"{records.name}, {kind}", len(records)):
                evaluations[kind] = evaluate_model(run.model, examples, run.answers, kind, group=group)
        if known:
            title = f"== {records.name}: {len(examples)} questions, trained with {trained_with}"
            if changes:
                title += f"; here with {', '.join(f'{name} {value}' for name, value in changes.items())}"
            tested = [record for record in examples.questions if record.answers]
            accuracies = answer_baselines(train, tested) if train else {}
            blind = blind_quality(examples, run.model.cells)
            parts.append(f"{title}\n\n{_tables(evaluations, accuracies, blind)}")
            found = {}
            if faithfulness:
                hiding = choose_hiding(run, examples.records, store, hide)
                found = measure_faithfulness(
                    run.model, examples, hiding, kinds, questions=faithfulness, progress=steps.say, group=group
                )
                parts.append(faithfulness_table(found))
        else:
            parts.append(f"== {records.name}: {len(examples)} questions without answers")
        names = {record.picture for record in examples.questions}
        if seen := run.trained_on(names):
            parts.append(f"Not new to it: {seen} of {len(names)} pictures have names that it was trained on.")
        if examples.records.skipped:
            parts.append(str(examples.records.skipped))
        if out is not None and group.first:
            if known:
                results = Results.of(records.name, evaluations).with_baselines(records.name, accuracies, blind)
                results.with_faithfulness(records.name, found).write(Path(out))
            write_results(Path(out) / f"{records.name}_results.json", evaluations[trained_with].predictions.items())
    if left_out:
        parts.append(
            f"Not evaluated: {', '.join(left_out)}, without answers. To write the model's, for an evaluation server: "
            "--out FOLDER"
        )
    return "\n\n".join(parts)


class _Steps:
    """Lines of progress: what begins now, how far it is, and how long the rest takes, by the questions so far."""

    def __init__(self, total: int, say: Callable[[str], None] | None) -> None:
        """`total`: questions of all steps."""
        self.total, self.say = total, say or (lambda _: None)
        self.done, self.seconds = 0, 0.0

    @contextmanager
    def step(self, name: str, count: int) -> Iterator[None]:
        """A step over `count` questions."""
        left = ""
        if self.done:
            left = f", about {duration(self.seconds / self.done * (self.total - self.done))} left"
        self.say(f"{name}: {count} questions ({100 * self.done // max(1, self.total)} %{left})")
        start = time.monotonic()
        yield
        self.done, self.seconds = self.done + count, self.seconds + time.monotonic() - start


def _tables(evaluations: dict[str, Evaluation], accuracies: dict[str, Accuracy], blind: dict[str, Means]) -> str:
    result = Comparison()
    for kind, evaluation in evaluations.items():
        result.add(kind, evaluation.summary())
    for name, accuracy in accuracies.items():
        result.add_accuracy(name, accuracy)
    for name, means in blind.items():
        result.add_quality(name, means)
    return result.tables()


def _training(data: Path, pictures: Path | str | None) -> list[Record]:
    """The training rows of the data that have answers; none if it has no split of that name."""
    if data.is_file() and TRAIN not in splits_in(data):
        return []
    try:
        return read_questions(data, TRAIN, pictures).keep_answered().records
    except NoSplit:
        return []


def _splits(
    data: Path, pictures: Path | str | None, regions: Path | str | None, *, answered: bool
) -> tuple[list[Records], list[str]]:
    """The records of every split but the training one, and the names of those that are left out.

    `answered`: leave splits without answers out: there is nothing to measure on them. A Problem if none is left.
    """
    known = splits_in(existing(data))
    if data.is_file() and not known:
        records = [read_own(data, None, pictures, regions)]
        if answered:
            check_answers(records[0], data, _USE)
        return _whole(records, data), []
    held_out = [name for name in (known if data.is_file() else SPLIT_NAMES) if name in known and name != TRAIN]
    if not held_out and data.is_file():
        raise NoSplit(f"{data} has only the split {TRAIN}. Evaluate on rows of another split, or on another file.")
    if not held_out:
        expected = ", ".join(name for name in SPLIT_NAMES if name != TRAIN)
        raise Problem(f"{data} has none of the splits {expected}. Give a folder in the form of VQA-v2.")
    chosen = [name for name in held_out if known[name] or not answered]
    if not chosen:
        raise Problem(
            f"{', '.join(held_out)} of {data} has no answers, and {_USE} needs them. Evaluate on data that has, or "
            "write the model's answers, for an evaluation server: --out FOLDER"
        )
    records = [read_questions(data, name, pictures, regions) for name in chosen]
    return _whole(records, data), [name for name in held_out if name not in chosen]


def _whole(splits: list[Records], data: Path) -> list[Records]:
    """The splits; a Problem if one of them has no question with a picture."""
    for records in splits:
        if not len(records):
            first = f": {records.skipped.notes[0][1]}" if records.skipped else ""
            raise Problem(f"nothing is left of {records.name} of {data}{first}. Check pictures and questions.")
    return splits


def _store_for(run: Run, records: Records, steps: _Steps, group: Together) -> FeatureStore:
    """The features of the training if they have all pictures of the records, else newly made ones."""
    needed = {record.picture for record in records.records}
    folder = run.folder.read_features()
    if folder is not None and FeatureStore.is_in(folder):
        store = FeatureStore.open(folder, expected=run.features)
        if needed <= set(store.names):
            return store
    pictures = {name: path for name, path in records.pictures.items() if name in needed}
    place = run.folder.own_features(records.name)
    if warning := squeezed(pictures.values()):
        steps.say(f"Warning: {warning}")
    steps.say(f"{records.name}: features of {len(pictures)} pictures, into {place}")
    backbone = run.load_backbone().to(group.device)
    return make_features(place, pictures, backbone, stages=run.features.stages, group=group)[0]
