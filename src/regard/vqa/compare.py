"""Attention kinds side by side: trained on the same data with several seeds, in the tables of the thesis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

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

PRICES = (0.05, 0.1, 0.3, 1.0)  # lambda of test-MCA
_MEASURES_SHOWN = ("mass", "pointing", "divergence", "rank", "entropy", "support", "focus", "modes", "area")


@dataclass
class Comparison:
    """Results of every kind of attention: accuracies and qualities, a number for each seed."""

    accuracy: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    quality: dict[str, dict[str, dict[str, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    components: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    order: dict[str, list[str]] = field(default_factory=dict)  # column names: answer types, question types

    def add(self, name: str, found: Summary, unseen: Summary | None = None) -> None:
        """One more seed of the row `name`."""
        row = self.accuracy[name]
        row["overall"].append(found.accuracy.overall)
        for kind in (found.accuracy.by_answer_type, found.accuracy.by_question_type):
            for column, value in kind.items():
                row[column].append(value)
        self.order["answers"] = sorted(found.accuracy.by_answer_type, key=_place_of)
        self.order["questions"] = list(found.accuracy.by_question_type)
        if unseen is not None:
            row["unseen pairs"].append(unseen.accuracy.overall)
        for stratum, means in found.quality.items():
            for measure, value in means.items():
                self.quality[name][stratum][measure].append(value)
        for k in range(1, 1 + max(found.components, default=0)):
            self.components[name][f"K = {k}"].append(found.components.get(k, 0.0))

    def tables(self) -> str:
        """Accuracy by answer type, by family, attention quality by number of regions, chosen components."""

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


def _place_of(answer_type: str) -> tuple[int, str]:
    """The types of VQA-v2 in the order of its tables, then others by name."""
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
) -> Comparison:
    """Train every kind with every seed (what is there is kept), evaluate on `test`, and write `results.json`.

    `workers` runs are trained at a time, each on one core, as `running` says (default without a line of progress).
    Models with "continuous-softmax" are also evaluated with the number of components chosen at test time, for each of
    `prices`: test-MCA. `unseen` names a split that the last column is for, or None. All splits need answers: that is
    looked at before anything is trained.
    """
    for split in dict.fromkeys(["train", test, *([unseen] if unseen else [])]):
        check_answers(read_questions(data, split), data, "a comparison")
    folder = ComparisonFolder(out)
    jobs = [
        Job(
            folder.run(kind, seed),
            data,
            features,
            replace(settings, seed=seed, model=replace(settings.model, attention=kind)),
            running or Running(progress=False),
        )
        for seed in range(seeds)
        for kind in map(str, map(parse, kinds))
    ]
    result = Comparison()
    for rows in run_jobs(
        jobs, partial(_evaluate_job, test=test, unseen=unseen, prices=tuple(prices)), workers, progress
    ):
        for name, found, new in rows:
            result.add(name, found, new)
    baselines(result, data, test)
    folder.write_results(result.to_json())
    return result


def _evaluate_job(
    job: Job, *, test: str, unseen: str | None, prices: tuple[float, ...]
) -> list[tuple[str, Summary, Summary | None]]:
    """The rows of a trained job: itself and, if it is continuous, with components chosen at test time."""
    run = load_run(job.out.path)
    store = FeatureStore.open(job.features, expected=run.features)

    def examples(split: str) -> Examples:
        length = run.model.settings.tokens
        return Examples(read_questions(job.data, split), store, run.words, run.answers, length)

    known = examples(test)
    new = evaluate_model(run.model, examples(unseen), run.answers).summary() if unseen else None
    kind = run.model.attention
    rows = [(kind, evaluate_model(run.model, known, run.answers).summary(), new)]
    for price in prices if parse(kind) == Continuous("softmax") else ():
        found = evaluate_model(run.model, known, run.answers, MixtureSelected(price))
        rows.append((f"test-MCA, lambda {price:g}", found.summary(), None))
    return rows


def baselines(result: Comparison, data: Path, test: str = "test") -> None:
    """Add what the question alone and the commonest answers give."""
    train, known = (read_questions(data, split).keep_answered().records for split in ("train", test))
    for name, found in (("question only", question_only(train, known)), ("majority", majority(train, known))):
        row = result.accuracy[name]
        row["overall"].append(found.overall)
        for column, value in (found.by_answer_type | found.by_question_type).items():
            row[column].append(value)
