"""Evaluation: the official accuracy, and the quality of the attention, with any output attention."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.continuous.members import on_cpu
from regard.training._device import sent
from regard.training._together import Together
from regard.vqa.accuracy import Accuracy, mean_accuracy
from regard.vqa.attention_quality import AttentionQuality, concatenate, mixture_modes, quality_of
from regard.vqa.examples import Examples
from regard.vqa.kinds import Kind, parse
from regard.vqa.mcan import MCAN
from regard.vqa.records import Answers, Record, answer_key

STRATA = ("all", "one region", "several")  # of questions, by the number of their regions
Means = dict[str, dict[str, float]]  # of attention quality: by stratum of the questions, and by measure


class Summary(NamedTuple):
    """Means of an evaluation: accuracy, quality by stratum and measure, percent of examples by number of components."""

    accuracy: Accuracy
    quality: Means
    components: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without the accuracy of each question."""
        accuracy = {name: value for name, value in vars(self.accuracy).items() if name != "each"}
        return {"accuracy": accuracy, "quality": self.quality, "components": self.components}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Summary:
        """The inverse of `to_json`; keys of JSON are text."""
        components = {int(count): share for count, share in written["components"].items()}
        return cls(Accuracy(**written["accuracy"], each={}), written["quality"], components)


@dataclass(frozen=True)
class Evaluation:
    """Results of a model on a split: answers by question id, accuracy, quality of attention, numbers of components."""

    attention: str
    predictions: dict[int | str, str]
    accuracy: Accuracy
    quality: AttentionQuality | None
    components: dict[int, float]  # share of the examples in percent, by number of components; empty if not a mixture
    questions: list[Record] = field(repr=False)

    def quality_means(self) -> Means:
        """Mean quality over all questions with regions, over those with one and with several, and by question type."""
        return {} if self.quality is None else means_of(self.quality, self.questions)

    def summary(self) -> Summary:
        """The means alone."""
        return Summary(self.accuracy, self.quality_means(), self.components)


def means_of(quality: AttentionQuality, questions: Sequence[Record]) -> Means:
    """Mean quality over all questions with regions, over those with one and with several, and by question type.

    A type of the data that is called as one of the first three is not told from it, and left out.
    """
    regions = torch.tensor([-1 if r.regions is None else len(r.regions) for r in questions])
    strata: dict[str, Tensor] = dict(zip(STRATA, (regions > 0, regions == 1, regions > 1), strict=True))
    for name in sorted({r.question_type for r in questions} - strata.keys()):
        strata[name] = (regions > 0) & torch.tensor([r.question_type == name for r in questions])
    return {name: quality.mean(chosen) for name, chosen in strata.items() if bool(chosen.any())}


class _Batch(NamedTuple):
    """What is measured on a batch: the numbers of the answers, of components, and the quality of the attention."""

    answers: list[int]
    components: list[int]
    quality: AttentionQuality | None


@torch.no_grad()
def evaluate_model(
    model: MCAN,
    examples: Examples,
    answers: Answers,
    attention: str | Kind | None = None,
    *,
    batch: int = 256,
    group: Together | None = None,
) -> Evaluation:
    """Answer every example, and measure accuracy and attention quality.

    `model`: not changed.
    `examples`: the accuracy is over those that have answers.
    `answers`: the model's vocabulary of answers.
    `attention`: the output attention of this evaluation; default the one that the model was trained with.
    `batch`: questions per forward pass; default 256.
    `group`: processes that share the batches, and all return the whole; default None, this one alone.
    """
    kind, training = parse(attention or model.attention), model.training
    model.eval()
    device = next(model.parameters()).device
    group = group or Together()
    starts = range(0, len(examples), batch)
    measured: list[_Batch] = []
    try:
        for start in group.shares(starts):
            indices = list(range(start, min(start + batch, len(examples))))
            inputs = examples.shared(indices)
            tensors = (sent(inputs[name], device) for name in ("features", "words", "rows"))
            scores, looked = model(*tensors, attention=kind)
            counts = mixture_modes(looked.density)
            quality = None
            if examples.has_regions:
                regions = examples.regions(indices)
                cells = looked.weights.float().cpu().reshape(-1, *model.cells)
                density = None if looked.density is None else on_cpu(looked.density)
                quality = quality_of(cells, density, regions)
            modes = [] if counts is None else counts.tolist()
            measured.append(_Batch(scores.argmax(-1).tolist(), modes, quality))
    finally:
        model.train(training)
    batches = group.interleave(measured, len(starts))
    best = [number for one in batches for number in one.answers]
    predictions = {q.id: answers.spelled[number] for q, number in zip(examples.questions, best, strict=True)}
    components = Counter(count for one in batches for count in one.components)
    parts = [one.quality for one in batches if one.quality is not None]
    return Evaluation(
        str(kind),
        predictions,
        accuracy_of(examples.questions, predictions),
        concatenate(parts) if parts else None,
        {k: 100 * n / len(examples) for k, n in sorted(components.items())},
        list(examples.questions),
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
