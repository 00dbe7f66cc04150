"""Tables 6.1 to 6.4 of the thesis: trained, judged, and printed beside the thesis' own figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard._files import disk_in_words, replacing
from regard._lock import writing_to
from regard.thesis.hyperparameters import TABLE_6_1, hyperparameters
from regard.thesis.printed import ACCURACY_COLUMNS, SHARES_6_4, SOFTMAX, PrintedRow, TableExperiment, TrainedModel
from regard.thesis.setup import ThesisSetup
from regard.training import RunFolder
from regard.training._device import choose_device
from regard.vqa.baseline import answer_baselines
from regard.vqa.evaluate import Summary, evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.feature_store import FeatureStore
from regard.vqa.jobs import Job
from regard.vqa.kinds import MixtureSelected
from regard.vqa.read import read_questions, write_results
from regard.vqa.settings import LAMBDAS, TrainSettings, price_of
from regard.vqa.store import load_run
from regard.vqa.tables import cell


@dataclass(frozen=True)
class ThesisTable:
    """A table with our figures beside those of the thesis.

    name, header, lines    its name, the names of its columns, and its rows as text
    numbers                everything, for JSON
    notes                  what is not comparable, in sentences
    """

    name: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    numbers: dict[str, Any]
    notes: tuple[str, ...]

    def markdown(self) -> str:
        """The table and the notes."""
        rows = [self.header, tuple("---" for _ in self.header), *self.lines]
        text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        listed = "\n".join(f"- {note}." for note in self.notes)
        return f"{text}\n\nNot comparable:\n\n{listed}" if listed else text

    def to_json(self) -> dict[str, Any]:
        """All numbers, and the notes."""
        return {"name": self.name, **self.numbers, "not_comparable": list(self.notes)}


def settings_table(settings: TrainSettings, features: Path | None = None) -> ThesisTable:
    """Table 6.1 beside what settings say; with the folder of features, if it is there, also beside their shape."""
    store = FeatureStore.open(features) if features is not None and FeatureStore.is_in(features) else None
    ours = hyperparameters(settings, store.shape if store else None)
    lines = tuple(
        (entry, _text(printed), _text(ours[entry]), "" if ours[entry] == printed else "differs")
        for entry, printed in TABLE_6_1.items()
    )
    numbers = {"printed": TABLE_6_1, "ours": ours, "settings": settings.to_json()}
    return ThesisTable("table-6.1", ("hyperparameter", "thesis", "here", ""), lines, numbers, ())


def _text(value: object) -> str:
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, list) else str(value)


def make_table(experiment: TableExperiment, setup: ThesisSetup) -> ThesisTable:
    """Train what a table needs, judge it, and write the table into the folder; rerun to resume."""
    with writing_to(setup.out), disk_in_words(setup.out, lambda: "Finished runs are kept."):
        selected = {row.penalty for row in experiment.rows if row.penalty is not None}
        penalties = sorted(selected) if experiment.rows else list(LAMBDAS)
        judge = partial(
            _judge,
            test=setup.judged,
            served=tuple(setup.served()) if experiment.rows else (),
            penalties=tuple(penalties),
            cells=setup.cells,
            answers=setup.folder.path,
        )
        found = setup.trained(experiment.models, judge)
        make = _accuracies if experiment.rows else _components
        table = make(experiment, setup, found)
        with replacing(setup.folder.text(experiment.name)) as beside:
            beside.write_text(table.markdown() + "\n", encoding="utf-8")
        RunFolder.write_json(setup.folder.numbers(experiment.name), table.to_json())
    return table


@dataclass(frozen=True)
class Judgement:
    """What one run gives: a summary for its own attention (None), and for test-MCA by lambda; seconds of training."""

    summaries: dict[float | None, Summary]
    seconds: float | None


def _judge(
    job: Job, *, test: str, served: tuple[str, ...], penalties: tuple[float, ...], cells: int, answers: Path
) -> Judgement:
    """Evaluate a trained job, and write its answers to the splits that a server judges."""
    from regard.thesis.folder import ThesisFolder

    run = load_run(job.out.path)
    run.model.to(choose_device(job.running.device, needs_float64=True))
    kinds: dict[float | None, str | MixtureSelected] = {None: run.model.attention}
    if run.model.attention == SOFTMAX.attention and run.model.settings.basis == SOFTMAX.basis:
        kinds |= {penalty: MixtureSelected(price_of(penalty, cells)) for penalty in penalties}
    store = FeatureStore.open(job.features, expected=run.features)

    def examples(split: str) -> Examples:
        records = read_questions(job.data, split, job.pictures)
        return Examples(records, store, run.words, run.answers, run.model.settings.tokens)

    judged = examples(test)
    summaries = {
        penalty: evaluate_model(run.model, judged, run.answers, kind).summary() for penalty, kind in kinds.items()
    }
    for split in served:
        asked = examples(split)
        for penalty, kind in kinds.items():
            row = job.out.path.name + ("" if penalty is None else f"-lambda-{penalty:g}")
            predictions = evaluate_model(run.model, asked, run.answers, kind).predictions
            write_results(ThesisFolder(answers).answers(row, split), predictions.items())
    return Judgement(summaries, job.out.read_done())


Found = dict[TrainedModel, list[Judgement]]


def _accuracies(experiment: TableExperiment, setup: ThesisSetup, found: Found) -> ThesisTable:
    """Tables 6.2 and 6.3."""
    header = (
        *("attention", "N", "lambda"),
        *ACCURACY_COLUMNS,
        *(f"thesis, test-dev: {column}" for column in ACCURACY_COLUMNS),
        "thesis, test-standard: overall",
    )
    rows, lines = [], []
    for row in experiment.rows:
        ours = _by_column([judgement.summaries[row.penalty] for judgement in found[row.model]])
        penalty = "-" if row.penalty is None else f"{row.penalty:g}"
        printed = (*(f"{value:.2f}" for value in row.dev), f"{row.standard[-1]:.2f}")
        lines.append((row.label, row.functions, penalty, *(cell(ours[c], 2) for c in ACCURACY_COLUMNS), *printed))
        rows.append(_row_json(row, ours, found))
    train = read_questions(setup.data, "train", setup.pictures).keep_answered().records
    for name, accuracy in answer_baselines(train, setup.records().keep_answered().records).items():
        ours = {
            column: [accuracy.by_answer_type[column]]
            for column in ACCURACY_COLUMNS
            if column in accuracy.by_answer_type
        }
        ours["overall"] = [accuracy.overall]
        lines.append(
            (f"{name}, without the picture", "-", "-", *(cell(ours.get(c, []), 2) for c in ACCURACY_COLUMNS), *"-----")
        )
        rows.append({"attention": name, "ours": ours})
    notes = setup.differences()
    if any(row.penalty is not None for row in experiment.rows):
        notes.append(_criterion(setup))
    numbers = {"rows": rows, "settings": setup.settings.to_json(), "seconds": _seconds(found)}
    return ThesisTable(experiment.name, header, tuple(lines), numbers, tuple(notes))


def _by_column(summaries: Sequence[Summary]) -> dict[str, list[float]]:
    """The accuracies of the seeds by column; no entry for a type that the data does not have."""
    columns: dict[str, list[float]] = {column: [] for column in ACCURACY_COLUMNS}
    for summary in summaries:
        for column in ACCURACY_COLUMNS[:-1]:
            if column in summary.accuracy.by_answer_type:
                columns[column].append(summary.accuracy.by_answer_type[column])
        columns["overall"].append(summary.accuracy.overall)
    return columns


def _row_json(row: PrintedRow, ours: dict[str, list[float]], found: Found) -> dict[str, Any]:
    return {
        "attention": row.model.attention,
        "basis": row.model.basis,
        "lambda": row.penalty,
        "ours": ours,
        "thesis": {"test-dev": dict(zip(ACCURACY_COLUMNS, row.dev, strict=True))}
        | {"test-standard": dict(zip(ACCURACY_COLUMNS, row.standard, strict=True))},
        "seconds": [judgement.seconds for judgement in found[row.model]],
    }


def _components(experiment: TableExperiment, setup: ThesisSetup, found: Found) -> ThesisTable:
    """Table 6.4."""
    header = ("lambda", "price", *(f"K = {k}" for k in range(1, 6)), *(f"thesis: K = {k}" for k in range(1, 6)))
    rows, lines = [], []
    for penalty, printed in SHARES_6_4.items():
        parts = [judgement.summaries[penalty].components for judgement in found[SOFTMAX]]
        ours = {k: [part.get(k, 0.0) for part in parts] for k in range(1, 6)}
        price = price_of(penalty, setup.cells)
        shares = (*(cell(values, 2) for values in ours.values()), *(f"{value:.2f}" for value in printed))
        lines.append((str(penalty), f"{price:.3g}", *shares))
        rows.append({"lambda": penalty, "price": price, "ours": ours, "thesis": dict(enumerate(printed, 1))})
    numbers = {"rows": rows, "settings": setup.settings.to_json(), "seconds": _seconds(found)}
    notes = (*setup.differences(), _criterion(setup))
    return ThesisTable(experiment.name, header, tuple(lines), numbers, notes)


def _criterion(setup: ThesisSetup) -> str:
    return (
        f"lambda is divided by the {setup.cells} cells: here each cell counts by its weight in the likelihood, in the "
        "authors' code once, whatever its weight"
    )


def _seconds(found: Found) -> float:
    """Of all trainings; those that were stopped and resumed count from the last start."""
    return sum(judgement.seconds or 0.0 for judgements in found.values() for judgement in judgements)
