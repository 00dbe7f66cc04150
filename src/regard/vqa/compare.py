"""Comparison of kinds of attention, trained on the same data with several seeds, in the tables of the thesis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from regard._problem import Problem
from regard.training import Running
from regard.vqa.baseline import majority, question_only
from regard.vqa.evaluate import Summary, evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.features import FeatureStore
from regard.vqa.folder import ComparisonFolder
from regard.vqa.jobs import Job, run_jobs
from regard.vqa.kinds import Continuous, Kind, MixtureSelected, parse
from regard.vqa.read import check_answers, read_questions
from regard.vqa.settings import TrainSettings
from regard.vqa.store import load_run
from regard.vqa.tables import cell, table

PRICES = (0.05, 0.1, 0.3, 1.0)  # lambda of test-MCA: the price per component
_MEASURES_SHOWN = ("mass", "pointing", "divergence", "rank", "entropy", "support", "focus", "modes", "area")


@dataclass
class Comparison:
    """Results of each kind of attention: accuracy and quality, one number per seed."""

    accuracy: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    quality: dict[str, dict[str, dict[str, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    components: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    order: dict[str, list[str]] = field(default_factory=dict)  # column names: answer types, question types

    def add(self, name: str, summary: Summary, unseen: Summary | None = None) -> None:
        """Add one seed to the row `name`: its summary on the test split, and on that of unseen pairs."""
        row = self.accuracy[name]
        row["overall"].append(summary.accuracy.overall)
        for kind in (summary.accuracy.by_answer_type, summary.accuracy.by_question_type):
            for column, value in kind.items():
                row[column].append(value)
        self.order["answers"] = sorted(summary.accuracy.by_answer_type, key=_type_order)
        self.order["questions"] = list(summary.accuracy.by_question_type)
        if unseen is not None:
            row["unseen pairs"].append(unseen.accuracy.overall)
        for stratum, means in summary.quality.items():
            for measure, value in means.items():
                self.quality[name][stratum][measure].append(value)
        for k in range(1, 1 + max(summary.components, default=0)):
            self.components[name][f"K = {k}"].append(summary.components.get(k, 0.0))

    def tables(self) -> str:
        """Accuracy by answer type and by family, attention quality by number of regions, numbers of components."""

        def rows(columns: Sequence[str]) -> dict[str, dict[str, str]]:
            return {
                name: {column: cell(row[column]) for column in columns if row.get(column)}
                for name, row in self.accuracy.items()
            }

        parts = [
            table("Accuracy in percent, by answer type", rows([*self.order["answers"], "overall", "unseen pairs"])),
            table("Accuracy in percent, by family of questions", rows(self.order["questions"])),
        ]
        for stratum in ("one region", "several"):
            measured = {
                name: {m: cell(strata[stratum][m], 3) for m in _MEASURES_SHOWN}
                for name, strata in self.quality.items()
                if stratum in strata
            }
            if measured:
                parts.append(table(f"Attention, questions with {stratum}", measured))
        if self.quality:
            families = {
                name: {f: cell(strata[f]["mass"], 2) for f in self.order["questions"] if f in strata}
                for name, strata in self.quality.items()
            }
            parts.append(table("Attention mass inside the region, by family of questions", families))
        if self.components:
            chosen = {name: {k: cell(v) for k, v in row.items()} for name, row in self.components.items()}
            parts.append(table("Components, in percent of the questions", chosen))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return {"accuracy": self.accuracy, "quality": self.quality, "components": self.components}


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
    """
    store = FeatureStore.open(features)
    for split in dict.fromkeys(["train", test, *([unseen] if unseen else [])]):
        records = read_questions(data, split, pictures)
        check_answers(records, data, "a comparison")
        if not any(map(store.has, records.pictures)):
            raise Problem(
                f"{features} has no features of {split}. Make them there with the same backbone: regard features "
                f"{data} --split {split}"
            )
    folder = ComparisonFolder(out)
    jobs = [
        Job(
            folder.run(kind, seed),
            data,
            features,
            replace(settings, seed=seed, model=replace(settings.model, attention=kind)),
            running or Running(progress=False),
            pictures,
        )
        for seed in range(seeds)
        for kind in map(str, map(parse, kinds))
    ]
    result = Comparison()
    for rows in run_jobs(
        jobs, partial(_evaluate_job, test=test, unseen=unseen, prices=tuple(prices)), workers, progress
    ):
        for name, summary, unseen_summary in rows:
            result.add(name, summary, unseen_summary)
    baselines(result, data, test, pictures)
    folder.write_results(result.to_json())
    return result


def _evaluate_job(
    job: Job, *, test: str, unseen: str | None, prices: tuple[float, ...]
) -> list[tuple[str, Summary, Summary | None]]:
    """Rows (name, summary on `test`, summary on `unseen`) of a trained job; for test-MCA a row per price."""
    run = load_run(job.out.path)
    store = FeatureStore.open(job.features, expected=run.features)

    def examples(split: str) -> Examples:
        length = run.model.settings.tokens
        return Examples(read_questions(job.data, split, job.pictures), store, run.words, run.answers, length)

    test_examples = examples(test)
    unseen_summary = evaluate_model(run.model, examples(unseen), run.answers).summary() if unseen else None
    kind = run.model.attention
    rows = [(kind, evaluate_model(run.model, test_examples, run.answers).summary(), unseen_summary)]
    for price in prices if parse(kind) == Continuous("softmax") else ():
        evaluation = evaluate_model(run.model, test_examples, run.answers, MixtureSelected(price))
        rows.append((f"test-MCA, lambda {price:g}", evaluation.summary(), None))
    return rows


def baselines(result: Comparison, data: Path, test: str = "test", pictures: Path | None = None) -> None:
    """Add the rows of the two baselines that see no picture: the question alone, and the commonest answer."""
    train, tested = (read_questions(data, split, pictures).keep_answered().records for split in ("train", test))
    for name, accuracy in (("question only", question_only(train, tested)), ("majority", majority(train, tested))):
        row = result.accuracy[name]
        row["overall"].append(accuracy.overall)
        for column, value in (accuracy.by_answer_type | accuracy.by_question_type).items():
            row[column].append(value)
