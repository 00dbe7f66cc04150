"""The report of a run: its summary, and its own samples asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from regard._files import replacing
from regard._problem import Problem
from regard.pictures import read
from regard.report._entries import Entry
from regard.report._page import page
from regard.vqa.folder import AnsweringFolder
from regard.vqa.kinds import Kind, parse
from regard.vqa.predict import Predictor
from regard.vqa.question_groups import OTHERS, choose_grouping, group_of
from regard.vqa.records import Record
from regard.vqa.results import Results
from regard.vqa.samples import Sample, read_samples
from regard.vqa.summary import RunSummary

SHOWN_QUESTIONS = 24  # shown by default


@dataclass(frozen=True)
class RunReport:
    """A report that was written: its file, the number of questions and pictures in it, and its size in bytes.

    >>> print(RunReport(Path("out/vqa/report.html"), 24, 12, 1_900_000))
    out/vqa/report.html: 24 questions about 12 pictures, 1.9 MB
    """

    path: Path
    questions: int
    pictures: int
    size: int

    def __str__(self) -> str:
        shown = f"{self.questions} questions about {self.pictures} pictures"
        return f"{self.path.as_posix()}: {shown}, {max(0.1, self.size / 1e6):.1f} MB"


def write_run_report(
    run: Path | str,
    out: Path | str | None = None,
    *,
    questions: int = SHOWN_QUESTIONS,
    attentions: Sequence[str | Kind] = (),
    progress: Callable[[int, int], None] | None = None,
) -> RunReport:
    """Write the report of a run as one HTML file: how well it answers, then questions of its samples asked again.

    `run`: the folder of a run. What it says about accuracy is in its summary.json (`regard.vqa.summary`), else in the
        results of `regard evaluate --out RUN/evaluation`; the examples are its samples (`regard.vqa.samples`). A run
        that has none of them is a Problem.
    `out`: the file, which ends in .html; default RUN/report.html.
    `questions`: at most so many are shown, in turn about each picture; default 24.
    `attentions`: output attentions to show side by side; default that of the training.
    `progress`: called with the questions asked and to ask; default None.

    The file is at most about 7 MB, whatever the pictures: many of them are compressed more.

    >>> write_run_report("out/vqa", "report.pdf")
    Traceback (most recent call last):
    regard._problem.Problem: the report of a run cannot be written as 'report.pdf'. Choose a name that ends in .html.
    """
    folder = AnsweringFolder(Path(run))
    path = Path(out) if out is not None else folder.report
    if path.suffix.lower() not in (".html", ".htm"):
        raise Problem(f"the report of a run cannot be written as {path.name!r}. Choose a name that ends in .html.")
    kinds = list(dict.fromkeys(map(parse, attentions)))
    folder.read_config()  # what is no run is said first
    summary, samples, results = folder.read_summary(), read_samples(folder), Results.beside(folder.path)
    if summary is None and not samples and results is None:
        raise Problem(
            f"{run} has neither samples nor results, so there is nothing to report. Train with held-out pictures "
            f"(regard train DATA --validation val --out {run}), or evaluate it: "
            f"regard evaluate {run} DATA --out {folder.path / 'evaluation'}"
        )
    chosen = _in_turn(samples, questions)
    notes = []
    if summary is None and results is None:
        notes.append(
            "How well it answers is not known: the run has not been measured on held-out pictures. Measure it, and "
            f"write this page again: regard evaluate {run} DATA --out {folder.path / 'evaluation'}"
        )
    if not samples:
        notes.append(
            "There are no examples: the run carries no held-out pictures. A training with --validation keeps some."
        )
    entries, failed = _asked(folder, chosen, kinds, summary, progress)
    notes += failed
    title = f"Questions about pictures: {summary.data if summary is not None else folder.path.resolve().name}"
    content = page(entries, title, summary, results, notes).encode("utf-8", "replace")
    with replacing(path) as beside:
        beside.write_bytes(content)
    return RunReport(path, len(entries), len({entry.name for entry in entries}), len(content))


def _in_turn(samples: Sequence[Sample], count: int) -> list[tuple[Sample, Record]]:
    """At most `count` questions: the first about each picture, then the second, and so on; in the order of pictures."""
    rounds = zip_longest(*([(sample, record) for record in sample.records] for sample in samples))
    turns = [pair for each in rounds for pair in each if pair is not None][:count]
    order = {id(sample): place for place, sample in enumerate(samples)}
    return sorted(turns, key=lambda pair: order[id(pair[0])])


def _asked(
    folder: AnsweringFolder,
    chosen: Sequence[tuple[Sample, Record]],
    kinds: Sequence[Kind],
    summary: RunSummary | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[Entry], list[str]]:
    """An entry for each question, and sentences on those that could not be asked."""
    entries: list[Entry] = []
    failed: list[str] = []
    if not chosen:
        return entries, failed
    predictor = Predictor.load(folder.path)
    asked_with = kinds or [parse(predictor.attention)]
    by = choose_grouping([record for _, record in chosen]) if summary is None else summary.grouping
    shown = None if summary is None else {group.name for group in summary.groups}
    for number, (sample, record) in enumerate(chosen):
        try:
            picture = read(sample.picture)
            predictions = [predictor.ask(picture, record.question, kind) for kind in asked_with]
        except Problem as problem:
            failed.append(f"Left out: {record.question!r} about {sample.name}: {problem}"[:300])
            continue
        finally:
            if progress:
                progress(number + 1, len(chosen))
        group = group_of(record, by)
        group = group if shown is None or group in shown else OTHERS
        unknown = predictor.words.unknown(record.question)
        entries.append(Entry(picture, record.question, predictions, record.answers, group, sample.name, unknown))
    return entries, failed
