"""Results of an evaluation, on disk and in the card of a model: accuracy and attention quality."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.hub.card import Section, markdown_table
from regard.vqa.accuracy import Accuracy
from regard.vqa.evaluate import Evaluation, Means
from regard.vqa.faithfulness import Faithfulness

RESULTS_FOLDER = "evaluation"  # of results, in the folder of a run or a model
_ANSWERS = "_results.json"  # the end of the names of files of answers, in the same folder
MEASURES = {
    "mass": "attention inside the regions that the answer rests on; by chance it is `area`",
    "pointing": "share of questions where the highest point lies in a region, or next to it; equal cells share it",
    "divergence": "Jensen-Shannon, from attention spread evenly over the regions, in bits: 0 the same, 1 disjoint",
    "rank": "Spearman's correlation with the share of the regions in each cell",
    "entropy": "in bits, from the uniform distribution: 0 is uniform, negative is concentrated",
    "support": "share of the picture with any attention",
    "focus": "the smallest share of the picture that holds nine tenths of the attention",
    "modes": "local maxima",
    "area": "share of the picture that the regions take",
}


@dataclass(frozen=True)
class Results:
    """The numbers of an evaluation, by split and by kind of output attention, as `regard evaluate --out` writes them.

    >>> results = Results({"test": {"discrete-softmax": {"overall": 50.0, "by_answer_type": {}, "quality": {}}}})
    >>> results.metrics("discrete-softmax")
    {'test': {'accuracy': 50.0}}
    """

    splits: Mapping[str, Mapping[str, Mapping[str, Any]]]

    @classmethod
    def of(cls, split: str, evaluations: Mapping[str, Evaluation]) -> Results:
        """The numbers of one split."""
        return cls(
            {
                split: {
                    kind: {
                        "overall": e.accuracy.overall,
                        "by_answer_type": e.accuracy.by_answer_type,
                        "by_question_type": e.accuracy.by_question_type,
                        "quality": e.quality_means(),
                        "components": e.components,
                    }
                    for kind, e in evaluations.items()
                }
            }
        )

    def with_baselines(self, split: str, accuracies: Mapping[str, Accuracy], blind: Mapping[str, Means]) -> Results:
        """These, and rows to compare them with: baselines that see no picture, and attention that does not look."""
        rows: dict[str, Mapping[str, Any]] = dict(self.splits[split])
        for name, accuracy in accuracies.items():
            rows[name] = {
                "overall": accuracy.overall,
                "by_answer_type": accuracy.by_answer_type,
                "by_question_type": accuracy.by_question_type,
                "quality": {},
                "components": {},
            }
        for name, means in blind.items():
            rows[name] = {"overall": None, "by_answer_type": {}, "by_question_type": {}, "quality": means}
        return Results({**self.splits, split: rows})

    def with_faithfulness(self, split: str, found: Mapping[str, Faithfulness]) -> Results:
        """These, and what hiding cells did to the answers of each kind."""
        rows = {kind: dict(numbers) for kind, numbers in self.splits[split].items()}
        for kind, measured in found.items():
            rows[kind]["faithfulness"] = measured.to_json()
        return Results({**self.splits, split: rows})

    def faithfulness(self, attention: str | None = None, split: str = "test") -> tuple[str, Faithfulness] | None:
        """A split and the faithfulness in it of a kind, default the first: in `split` or else any; None if none."""
        for name in sorted(self.splits, key=lambda name: name != split):
            for kind, numbers in self.splits[name].items():
                if attention in (None, kind) and "faithfulness" in numbers:
                    return name, Faithfulness.from_json(numbers["faithfulness"])
        return None

    @classmethod
    def read(cls, path: Path | str) -> Results:
        """Results from one SPLIT.json, or from all in a folder."""
        path = Path(path)
        files = [path] if path.is_file() else sorted(f for f in path.glob("*.json") if not f.name.endswith(_ANSWERS))
        if not files:
            raise Problem(f"{path} has no results. Make some: regard evaluate RUN DATA --out {path}")
        splits = {}
        for file in files:
            try:
                splits[file.stem] = _checked(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                why = f"is no result of regard evaluate ({type(error).__name__}: {error})"
                raise Problem(f"{file} {why}. Name the folder that it wrote.") from error
        return cls(splits)

    @classmethod
    def beside(cls, folder: Path) -> Results | None:
        """The results in the folder of a run or a model; None if there are none."""
        return cls.read(folder / RESULTS_FOLDER) if (folder / RESULTS_FOLDER).is_dir() else None

    def write(self, folder: Path) -> None:
        """Write SPLIT.json for each split."""
        for split, kinds in self.splits.items():
            with replacing(folder / f"{split}.json") as beside:
                beside.write_text(json.dumps(kinds, indent=1))

    def metrics(self, attention: str) -> dict[str, dict[str, float]]:
        """By split, accuracy and, if regions are known, attention mass, with the model's `attention`."""
        return {
            split: {"accuracy": kinds[attention]["overall"]}
            | {f"attention {m}": value for m, value in _over_all(kinds[attention]).items() if m == "mass"}
            for split, kinds in self.splits.items()
            if attention in kinds
        }

    def sections(self, attention: str) -> list[Section]:
        """A section of a card per split: accuracy and quality of each kind, that of the model's `attention` first."""
        return [Section(f"Results on {split}", _tables_of(kinds, attention)) for split, kinds in self.splits.items()]


def _tables_of(kinds: Mapping[str, Mapping[str, Any]], attention: str) -> str:
    """Two tables, accuracy and quality, the model's `attention` first."""
    everything = sorted(kinds, key=lambda kind: kind != attention)
    ordered = [kind for kind in everything if kinds[kind]["overall"] is not None]
    labels = {kind: f"**{kind}** (its own)" if kind == attention else kind for kind in everything}
    types = list(dict.fromkeys(t for kind in ordered for t in kinds[kind]["by_answer_type"]))
    rows = [
        [
            labels[kind],
            f"{kinds[kind]['overall']:.1f}",
            *(_number(kinds[kind]["by_answer_type"].get(t), 1) for t in types),
        ]
        for kind in ordered
    ]
    text = "Accuracy in percent, by output attention:\n\n" + markdown_table(["attention", "overall", *types], rows)
    measured = [kind for kind in everything if _over_all(kinds[kind])]
    if not measured:
        return text
    rows = [[labels[kind], *(_number(_over_all(kinds[kind]).get(m), 3) for m in MEASURES)] for kind in measured]
    meaning = "\n".join(f"- {name}: {words}" for name, words in MEASURES.items())
    return (
        f"{text}\n\nWhere it looked, over all questions whose regions are known:\n\n"
        f"{markdown_table(['attention', *MEASURES], rows)}\n\n{meaning}"
    )


def _over_all(numbers: Mapping[str, Any]) -> Mapping[str, float]:
    """The mean quality over all questions with regions."""
    means: Mapping[str, float] = numbers["quality"].get("all", {})
    return means


def _number(value: float | None, digits: int) -> str:
    """A number with so many decimals; "-" for None and NaN."""
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def _checked(kinds: Any) -> dict[str, dict[str, Any]]:
    """The content of SPLIT.json; an error unless it has the form that `write` gives it."""
    for numbers in kinds.values():
        measured = [*numbers["by_answer_type"].values(), *_over_all(numbers).values()]
        overall = [] if numbers["overall"] is None else [numbers["overall"]]  # of an attention that does not look
        if not all(isinstance(value, int | float) for value in (*overall, *measured)):
            raise TypeError("a number was expected")
        if "faithfulness" in numbers:
            Faithfulness.from_json(numbers["faithfulness"])
    return dict(kinds)
