"""Comparison of kinds of attention, trained on the same data with several seeds, in the tables of the thesis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from regard._files import disk_in_words
from regard._lock import writing_to
from regard._problem import Problem
from regard._ranks import launched
from regard.training import Running
from regard.training._device import choose_device
from regard.vqa.accuracy import Accuracy
from regard.vqa.baseline import answer_baselines
from regard.vqa.blind import blind_quality
from regard.vqa.evaluate import STRATA, Means, Summary, evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.faithfulness import Faithfulness, measure_faithfulness
from regard.vqa.faithfulness_table import columns_of, seeds_table
from regard.vqa.features import FeatureStore
from regard.vqa.folder import AnsweringFolder, ComparisonFolder
from regard.vqa.hide_names import HideName
from regard.vqa.hiding import choose_hiding
from regard.vqa.jobs import Job, run_jobs
from regard.vqa.kinds import Continuous, Discrete, Kind, MixtureSelected, parse
from regard.vqa.needs import Need, check_features, check_splits
from regard.vqa.own import TRAIN
from regard.vqa.provenance import training_data
from regard.vqa.read import check_answers, read_questions
from regard.vqa.settings import TrainSettings
from regard.vqa.shared_jobs import JobQueue, share_jobs
from regard.vqa.store import Run, load_run
from regard.vqa.tables import cell, table

_SHARED, _STARTED = Discrete("softmax"), "start"  # the kind that others start from, and the name of its runs
PRICES = (0.05, 0.1, 0.3, 1.0)  # lambda of test-MCA: the price per component
_MEASURES_SHOWN = ("mass", "pointing", "divergence", "rank", "entropy", "support", "focus", "modes", "area")


@dataclass
class Comparison:
    """Results of each kind of attention and of the baselines: accuracy and quality, one number per seed.

    `accuracy` has the columns "overall" and "unseen pairs"; accuracies by type are apart from it, since types may have
    any name.
    """

    accuracy: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    by_answer_type: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    by_question_type: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    quality: dict[str, dict[str, dict[str, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    components: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    faithfulness: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    hidden: str = ""
    shared_epochs: int = 0  # that all kinds of a seed began with

    def add(self, name: str, summary: Summary, unseen: Summary | None = None) -> None:
        """Add one seed to the row `name`: its summary on the test split, and on that of unseen pairs."""
        self.add_accuracy(name, summary.accuracy)
        if unseen is not None:
            self.accuracy[name]["unseen pairs"].append(unseen.accuracy.overall)
        self.add_quality(name, summary.quality)
        for k in range(1, 1 + max(summary.components, default=0)):
            self.components[name][f"K = {k}"].append(summary.components.get(k, 0.0))

    def add_accuracy(self, name: str, accuracy: Accuracy) -> None:
        """Add the accuracies of one seed, or of a baseline, to the row `name`."""
        self.accuracy[name]["overall"].append(accuracy.overall)
        for target, types in (
            (self.by_answer_type, accuracy.by_answer_type),
            (self.by_question_type, accuracy.by_question_type),
        ):
            for column, value in types.items():
                target[name][column].append(value)

    def add_quality(self, name: str, means: Means) -> None:
        """Add the attention quality of one seed, or of a blind attention, to the row `name`."""
        for stratum, measures in means.items():
            for measure, value in measures.items():
                self.quality[name][stratum][measure].append(value)

    def add_faithfulness(self, found: Faithfulness) -> None:
        """Add what hiding cells did to the answers of one seed, to the row of its attention."""
        self.hidden = f"{found.questions} questions, cells hidden {found.hidden}"
        for column, value in columns_of(found).items():
            self.faithfulness[found.attention][column].append(value)

    def tables(self) -> str:
        """Accuracy by answer type and by family, attention quality by regions, components, faithfulness."""
        answer_types = sorted(_columns(self.by_answer_type), key=_type_order)
        families = _columns(self.by_question_type)
        totals = ("overall", "unseen pairs")
        passes = f"{self.shared_epochs} epoch{'s' if self.shared_epochs > 1 else ''}"
        parts = [f"All attentions of a seed begin with the same {passes} with {_SHARED}."] if self.shared_epochs else []
        parts += [
            table(
                "Accuracy in percent, by answer type",
                {
                    name: {_header(t, totals): _shown(self.by_answer_type, name, t) for t in answer_types}
                    | {t: cell(row[t]) for t in totals if row.get(t)}
                    for name, row in self.accuracy.items()
                },
            )
        ]
        if families != [""]:  # of data without question types
            rows = {
                name: {_header(f): _shown(self.by_question_type, name, f) for f in families} for name in self.accuracy
            }
            parts.append(table("Accuracy in percent, by family of questions", rows))
        for stratum in STRATA[1:]:
            measured = {
                name: {m: cell(strata[stratum][m], 3) for m in _MEASURES_SHOWN}
                for name, strata in self.quality.items()
                if stratum in strata
            }
            if measured:
                parts.append(table(f"Attention, questions with {stratum}", measured))
        if self.quality and families != [""]:
            masses = {
                name: {_header(f): cell(strata[f]["mass"], 2) for f in families if f in strata.keys() - set(STRATA)}
                for name, strata in self.quality.items()
            }
            if any(masses.values()):
                parts.append(table("Attention mass inside the region, by family of questions", masses))
        if self.components:
            chosen = {name: {k: cell(v) for k, v in row.items()} for name, row in self.components.items()}
            parts.append(table("Components, in percent of the questions", chosen))
        if self.faithfulness:
            parts.append(seeds_table(self.faithfulness, self.hidden))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return {
            "accuracy": self.accuracy,
            "by_answer_type": self.by_answer_type,
            "by_question_type": self.by_question_type,
            "quality": self.quality,
            "components": self.components,
            "faithfulness": self.faithfulness,
            "hidden": self.hidden,
            "shared_epochs": self.shared_epochs,
        }


def _columns(rows: dict[str, dict[str, list[float]]]) -> list[str]:
    """The names of all columns, in order."""
    return list(dict.fromkeys(column for row in rows.values() for column in row))


def _shown(rows: dict[str, dict[str, list[float]]], name: str, column: str) -> str:
    return cell(rows.get(name, {}).get(column, []))


def _header(name: str, taken: Sequence[str] = ()) -> str:
    """The header of a column for a type of the data, which may have no name, or that of another column."""
    return f"type {name}" if name in taken else name or "no type"


def _type_order(answer_type: str) -> tuple[int, str]:
    """A sort key: the types of VQA-v2 in the order of its tables, then others by name."""
    known = ("yes/no", "number", "other")
    return (known.index(answer_type) if answer_type in known else len(known), answer_type)


def compare_kinds(
    out: Path,
    data: Path,
    features: Path,
    settings: TrainSettings,
    kinds: Sequence[str | Kind],
    *,
    seeds: int = 3,
    workers: int = 2,
    running: Running | None = None,
    prices: Sequence[float] = PRICES,
    test: str = "test",
    unseen: str | None = "pairs",
    progress: Callable[[float], None] | None = None,
    pictures: Path | None = None,
    regions: Path | None = None,
    faithfulness: int = 0,
    hide: HideName | None = None,
    shared: bool = False,
    shared_epochs: int = 0,
) -> Comparison:
    """Train every kind with every seed, evaluate each on `test`, and write `results.json`; rerun to resume.

    `out`: the folder of the comparison; finished runs in it are not trained again.
    `data`: questions, as `read_questions` takes them; all splits need answers, which is checked before training.
    `features`: the folder of the features of all pictures; a split without any is a Problem before training.
    `settings`: of every run; seed and attention are replaced.
    `kinds`: kinds of output attention, by name or value.
    `seeds`: how many; default 3.
    `workers`: runs trained at a time, each on one core; default 2.
    `running`: of every run; default `Running(progress=False)`.
    `prices`: models with "continuous-softmax" are also evaluated with the number of components chosen at test time at
        each of these prices (test-MCA); default `PRICES`.
    `test`: the split to evaluate on; default "test".
    `unseen`: the split of the column "unseen pairs"; default "pairs"; None for no such column.
    `progress`: called with the share that is trained; default None.
    `pictures`: the folder of the pictures; default None, beside the questions.
    `regions`: the folder of the masks, as `read_questions` takes it; default None.
    `faithfulness`: hide cells for so many questions of `test`, with the attention of each run; default 0, not.
    `hide`: how, as in `regard.vqa.hiding.choose_hiding`; default None.
    `shared`: share the runs with other processes that make the same call, on this machine and others that see `out`
        (`regard.vqa.shared_jobs`); default False. Always under torchrun.
    `shared_epochs`: passes over the data that all kinds of a seed share: a model with discrete softmax, from whose
        weights each kind goes on for the epochs of the settings; default 0, every kind begins with random weights.
    """
    needs = comparison_needs(test, unseen)
    check_splits(data, needs)
    if settings.patience is not None:
        raise Problem("a comparison trains without validation. Leave patience out, and set the number of epochs.")
    store = FeatureStore.open(features)
    digests = []
    for need in needs:
        records = read_questions(data, need.split, pictures)
        digests.append(training_data(records, store).digest)
        check_answers(records, data, need.use, need.option)
        check_features(store, records, data)
    folder = ComparisonFolder(out)

    def job(name: str, kind: str, seed: int, epochs: int | None, start: AnsweringFolder | None = None) -> Job:
        of_run = replace(settings, seed=seed, epochs=epochs, model=replace(settings.model, attention=kind))
        how = running or Running(progress=False)
        return Job(folder.run(name, seed), data, features, of_run, how, pictures, start)

    first = [job(_STARTED, str(_SHARED), seed, shared_epochs) for seed in range(seeds)] if shared_epochs else []
    jobs = [
        job(kind, kind, seed, settings.epochs, first[seed].out if first else None)
        for seed in range(seeds)
        for kind in map(str, map(parse, kinds))
    ]
    result = Comparison(shared_epochs=shared_epochs)
    evaluate = partial(
        _evaluate_job, test=test, unseen=unseen, prices=tuple(prices), regions=regions, hidden=(faithfulness, hide)
    )
    ranks = launched()
    several = shared or ranks.size > 1
    if several and not jobs[0].running.resume:
        raise Problem(f"several processes cannot start over: one would undo another's work. Remove {out}, then rerun.")
    with nullcontext() if several else writing_to(out), disk_in_words(out, lambda: "Finished runs are kept."):
        if several:
            key = [digests, test, unseen, list(prices), None if regions is None else str(regions), faithfulness, hide]
            queue = JobQueue(folder.queue, key)

            def run_all(jobs: list[Job], then: Callable[[Job], Any], progress: Callable[[float], None]) -> list[Any]:
                return share_jobs(jobs, then, queue, ranks, workers, progress)
        else:

            def run_all(jobs: list[Job], then: Callable[[Job], Any], progress: Callable[[float], None]) -> list[Any]:
                return run_jobs(jobs, then, workers, progress)

        before = len(first) / (len(first) + len(jobs))  # the share of the runs that are shared
        show = progress or (lambda _: None)
        if first:
            run_all(first, _is_trained, lambda share: show(before * share))
        evaluated = partial(_as_json, evaluate=evaluate)
        results = run_all(jobs, evaluated, lambda share: show(before + (1 - before) * share))
        for rows in results:
            for name, summary, unseen_summary in rows["rows"]:
                result.add(name, Summary.from_json(summary), unseen_summary and Summary.from_json(unseen_summary))
            if rows["faithfulness"] is not None:
                result.add_faithfulness(Faithfulness.from_json(rows["faithfulness"]))
        baselines(result, data, test, pictures)
        run = load_run(jobs[0].out.path)
        for name, means in blind_quality(_examples(jobs[0], run, test, regions), run.model.cells).items():
            result.add_quality(name, means)
        folder.write_results(result.to_json())
    return result


def _is_trained(job: Job) -> bool:
    """All that is asked of a run that others start from."""
    return job.out.is_done


def _as_json(job: Job, evaluate: Callable[[Job], Any]) -> dict[str, Any]:
    """What `_evaluate_job` returns, as plain values: results cross a disk, or a pipe."""
    rows, found = evaluate(job)
    return {
        "rows": [(name, one.to_json(), two and two.to_json()) for name, one, two in rows],
        "faithfulness": found and found.to_json(),
    }


def comparison_needs(test: str, unseen: str | None) -> list[Need]:
    """The splits whose answers a comparison needs; arguments as in `compare_kinds`."""
    needs = [Need(TRAIN, "training"), Need(test, "a comparison", "--test")]
    return needs + ([Need(unseen, "the column of unseen pairs", "--unseen")] if unseen else [])


def _examples(job: Job, run: Run, split: str, regions: Path | None) -> Examples:
    """A split as examples for the model of a job."""
    store = FeatureStore.open(job.features, expected=run.features)
    records = read_questions(job.data, split, job.pictures, regions)
    return Examples(records, store, run.words, run.answers, run.model.settings.tokens)


def _evaluate_job(
    job: Job,
    *,
    test: str,
    unseen: str | None,
    prices: tuple[float, ...],
    regions: Path | None,
    hidden: tuple[int, HideName | None],
) -> tuple[list[tuple[str, Summary, Summary | None]], Faithfulness | None]:
    """Rows (name, summary on `test`, summary on `unseen`) of a trained job, for test-MCA a row per price; faithfulness.

    `hidden`: the number of questions for which cells are hidden, and how.
    """
    run = load_run(job.out.path)
    run.model.to(choose_device(job.running.device, needs_float64=True))
    examples = _examples(job, run, test, regions)
    unseen_summary = None
    if unseen:
        unseen_summary = evaluate_model(run.model, _examples(job, run, unseen, regions), run.answers).summary()
    kind = run.model.attention
    rows = [(kind, evaluate_model(run.model, examples, run.answers).summary(), unseen_summary)]
    for price in prices if parse(kind) == Continuous("softmax") else ():
        evaluation = evaluate_model(run.model, examples, run.answers, MixtureSelected(price))
        rows.append((f"test-MCA, lambda {price:g}", evaluation.summary(), None))
    questions, how = hidden
    if not questions:
        return rows, None
    hide = choose_hiding(run, examples.records, FeatureStore.open(job.features), how)
    return rows, measure_faithfulness(run.model, examples, hide, [kind], questions=questions)[kind]


def baselines(result: Comparison, data: Path, test: str = "test", pictures: Path | None = None) -> None:
    """Add the rows of the two baselines that see no picture: the question alone, and the commonest answer."""
    train, tested = (read_questions(data, split, pictures).keep_answered().records for split in ("train", test))
    for name, accuracy in answer_baselines(train, tested).items():
        result.add_accuracy(name, accuracy)
