"""Evaluation: the official accuracy, and the quality of the attention, with any output attention."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.vqa.accuracy import Accuracy, mean_accuracy
from regard.vqa.attention_quality import AttentionQuality, attention_map, attention_quality, concatenate, mixture_modes
from regard.vqa.examples import Examples
from regard.vqa.kinds import Kind, parse
from regard.vqa.mcan import MCAN
from regard.vqa.records import Answers, Record, answer_key


class Summary(NamedTuple):
    """Means of an evaluation: accuracy, quality by stratum and measure, percent of examples by number of components."""

    accuracy: Accuracy
    quality: dict[str, dict[str, float]]
    components: dict[int, float]


@dataclass(frozen=True)
class Evaluation:
    """Results of a model on a split: answers by question id, accuracy, quality of attention, numbers of components."""

    attention: str
    predictions: dict[int | str, str]
    accuracy: Accuracy
    quality: AttentionQuality | None
    components: dict[int, float]  # share of the examples in percent, by number of components; empty if not a mixture
    regions: Tensor = field(repr=False)  # the number of regions of each example, -1 if unknown
    types: list[str] = field(repr=False)  # the question type of each example

    def quality_means(self) -> dict[str, dict[str, float]]:
        """Mean quality over all questions with regions, over those with one and with several, and by question type."""
        if self.quality is None:
            return {}
        strata: dict[str, Tensor] = {
            "all": self.regions > 0,
            "one region": self.regions == 1,
            "several": self.regions > 1,
        }
        for name in sorted(set(self.types)):
            strata[name] = (self.regions > 0) & torch.tensor([t == name for t in self.types])
        return {name: self.quality.mean(chosen) for name, chosen in strata.items() if bool(chosen.any())}

    def summary(self) -> Summary:
        """The means alone."""
        return Summary(self.accuracy, self.quality_means(), self.components)


@torch.no_grad()
def evaluate_model(
    model: MCAN, examples: Examples, answers: Answers, attention: str | Kind | None = None, *, batch: int = 256
) -> Evaluation:
    """Answer every example, and measure accuracy and attention quality.

    `model`: not changed.
    `examples`: the accuracy is over those that have answers.
    `answers`: the model's vocabulary of answers.
    `attention`: the output attention of this evaluation; default the one that the model was trained with.
    `batch`: questions per forward pass; default 256.
    """
    kind, training = parse(attention or model.attention), model.training
    model.eval()
    device = next(model.parameters()).device
    predictions: dict[int | str, str] = {}
    parts: list[AttentionQuality] = []
    components: Counter[int] = Counter()
    try:
        for start in range(0, len(examples), batch):
            indices = list(range(start, min(start + batch, len(examples))))
            inputs = examples.shared(indices)
            tensors = (inputs[name].to(device) for name in ("features", "words", "rows"))
            scores, looked = model(*tensors, attention=kind)
            for i, best in zip(indices, scores.argmax(-1).tolist(), strict=True):
                predictions[examples.questions[i].id] = answers.spelled[best]
            counts = mixture_modes(looked.density)
            if counts is not None:
                components.update(counts.tolist())
            if examples.has_regions:
                regions = examples.regions(indices)
                cells = looked.weights.float().cpu().reshape(-1, *model.cells)
                maps = attention_map(cells, looked.density, (regions.shape[1], regions.shape[2])).cpu()
                parts.append(attention_quality(maps, regions, model.cells))
    finally:
        model.train(training)
    return Evaluation(
        str(kind),
        predictions,
        accuracy_of(examples.questions, predictions),
        concatenate(parts) if parts else None,
        {k: 100 * n / len(examples) for k, n in sorted(components.items())},
        torch.tensor([-1 if r.regions is None else len(r.regions) for r in examples.questions]),
        [r.question_type for r in examples.questions],
    )


def accuracy_of(records: Sequence[Record], predictions: Mapping[int | str, str]) -> Accuracy:
    """The official accuracy over the records that have answers; NaN if none has.

    Answers of one's own tables (`Record.lenient`) are normalised always, and so are the predictions for them: one row
    says "Cat" and another "a cat". The official code normalises only where people differ.

    >>> accuracy_of([Record(1, "a", "What is it?", ("A Cat",) * 10, lenient=True)], {1: "cat"}).overall
    100.0
    """
    annotations = [
        {
            "question_id": r.id,
            "answers": [answer_key(answer) for answer in r.answers] if r.lenient else r.answers,
            "answer_type": r.answer_type,
            "question_type": r.question_type,
        }
        for r in records
        if r.answers
    ]
    if not annotations:
        return Accuracy(math.nan, {}, {}, {}, {})
    said = {r.id: answer_key(predictions[r.id]) if r.lenient else predictions[r.id] for r in records if r.answers}
    return mean_accuracy(said, annotations)
