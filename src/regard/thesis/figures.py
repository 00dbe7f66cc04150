"""Figures 6.4 to 6.11 of the thesis: attention of several models to one question, as PNG files.

The thesis chose its questions by eye. Here a rule chooses, `QuestionChoice`: the first question in its order that the
models answer as the figure wants it. If there is none, the first in the order whatever the answers, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._files import disk_in_words, replacing
from regard._lock import writing_to
from regard._problem import Problem
from regard.continuous import Density
from regard.continuous.members import members
from regard.pictures import read
from regard.thesis.printed import (
    DISCRETE,
    MCA_2,
    MCA_4,
    SOFTMAX,
    SPARSEMAX,
    FigureExperiment,
    QuestionChoice,
    TrainedModel,
)
from regard.thesis.setup import ThesisSetup
from regard.training import RunFolder
from regard.vqa.attention_quality import mixture_modes
from regard.vqa.evaluate import accuracy_of
from regard.vqa.examples import Examples
from regard.vqa.feature_store import FeatureStore
from regard.vqa.jobs import Job
from regard.vqa.kinds import Kind, MixtureSelected
from regard.vqa.read import read_questions
from regard.vqa.records import Record, commonest
from regard.vqa.settings import LAMBDAS, price_of
from regard.vqa.store import Run, load_run

CHOSEN_FROM = 2000  # questions that a figure's is chosen from: the first of the split
_RIGHT = 0.5  # accuracy from which an answer counts as right
_BATCH = 256


@dataclass(frozen=True)
class ThesisFigure:
    """A picture of a figure: where it is, the question and what people say, each panel's answer, how it was chosen."""

    path: Path
    question: str
    truth: str
    answers: dict[str, str]
    fits: bool
    choice: QuestionChoice
    id: int | str

    def to_json(self) -> dict[str, Any]:
        """What it shows."""
        return asdict(self) | {"path": self.path.name}

    def __str__(self) -> str:
        """In one line."""
        said = ", ".join(f"{panel}: {answer}" for panel, answer in self.answers.items())
        note = "" if self.fits else " (no question is answered as in the thesis' figure: the first in order)"
        return f"{self.path}: {self.question} people: {self.truth}; {said}{note}"


def make_figure(
    experiment: FigureExperiment, setup: ThesisSetup, question: int | str | None = None
) -> list[ThesisFigure]:
    """Train what a figure needs, choose its questions, and draw; rerun to resume.

    `experiment`: the figure.
    `setup`: data, features, settings.
    `question`: the id of a question of the split to draw in place of the chosen ones; default None.
    """
    with writing_to(setup.out), disk_in_words(setup.out, lambda: "Finished runs are kept."):
        watch = partial(_watch, test=setup.judged, price=price_of(LAMBDAS[-1], setup.cells))
        seen = {model: watched[0] for model, watched in setup.trained(experiment.models, watch).items()}
        examples = _examples(setup.job(DISCRETE, 0), setup.judged)[1]
        if question is None:
            picks = [(choice, *_chosen(choice, seen, examples.questions)) for choice in experiment.choices]
        else:
            picks = [(experiment.choices[0], _of_id(examples.questions, question), True)]
        figures = []
        for number, (choice, index, fits) in enumerate(picks):
            place = setup.folder.picture(experiment.name, number, len(picks))
            figures.append(_draw(place, experiment, setup, examples, index, choice, fits))
        shown = {"figures": [figure.to_json() for figure in figures], "not_comparable": setup.differences()}
        RunFolder.write_json(setup.folder.numbers(experiment.name), {"name": experiment.name, **shown})
    return figures


@dataclass(frozen=True)
class Watched:
    """What a model does with each question: accuracy, and the measures that a choice sorts by, (questions,) each.

    entropy      of the discrete weights, in nats
    area         the square root of the determinant of the density's covariance; zero without a density
    components   that test-MCA selects; ones for another model
    """

    right: dict[int | str, float]
    entropy: Tensor
    area: Tensor
    components: Tensor


def _examples(job: Job, test: str) -> tuple[Run, Examples]:
    """A run, and the questions of the split that a figure is chosen from."""
    run = load_run(job.out.path)
    store = FeatureStore.open(job.features, expected=run.features)
    records = read_questions(job.data, test, job.pictures).keep_answered()
    first = replace(records, records=records.records[:CHOSEN_FROM])
    return run, Examples(first, store, run.words, run.answers, run.model.settings.tokens)


@torch.no_grad()
def _watch(job: Job, *, test: str, price: float) -> Watched:
    """Ask a trained job all questions that a figure may show."""
    run, examples = _examples(job, test)
    selects = run.model.attention == SOFTMAX.attention
    predictions: dict[int | str, str] = {}
    entropy, area, components = [], [], []
    for start in range(0, len(examples), _BATCH):
        indices = list(range(start, min(start + _BATCH, len(examples))))
        inputs = examples.shared(indices)
        scores, looked = run.model(inputs["features"], inputs["words"], inputs["rows"])
        for i, best in zip(indices, scores.argmax(-1).tolist(), strict=True):
            predictions[examples.questions[i].id] = run.answers.spelled[best]
        entropy.append(-torch.special.xlogy(looked.weights, looked.weights).sum(-1))
        density = looked.density
        area.append(torch.zeros(len(indices)) if density is None else density.covariance.det().clamp_min(0).sqrt())
        if selects:
            selected = run.model(inputs["features"], inputs["words"], inputs["rows"], attention=MixtureSelected(price))
        modes = mixture_modes(selected.looked.density) if selects else None
        components.append(torch.ones(len(indices)) if modes is None else modes)
    accuracy = accuracy_of(examples.questions, predictions)
    return Watched(accuracy.each, torch.cat(entropy), torch.cat(area), torch.cat(components))


def _chosen(choice: QuestionChoice, seen: Mapping[TrainedModel, Watched], questions: list[Record]) -> tuple[int, bool]:
    """The number of the question that a rule chooses, and whether it is answered as the figure wants it."""
    key = {
        "scattered": -seen[DISCRETE].entropy,
        "narrow": seen[SOFTMAX].area,
        "wide": -seen[SOFTMAX].area,
        "many": -seen[SOFTMAX].components.double() - seen[SOFTMAX].area.double().clamp_max(0.999),
    }[choice.order]
    order = sorted(range(len(questions)), key=lambda i: (float(key[i]), i))

    def fits(i: int) -> bool:
        wanted = {DISCRETE: choice.discrete, SOFTMAX: choice.continuous, SPARSEMAX: choice.continuous}
        return all(
            judged is None or (seen[model].right[questions[i].id] >= _RIGHT) == (judged == "right")
            for model, judged in wanted.items()
        )

    typed = [i for i in order if questions[i].answer_type == choice.answer_type] or order
    suiting = [i for i in typed if fits(i)]
    if len(suiting) > choice.rank:
        return suiting[choice.rank], True
    return typed[min(choice.rank, len(typed) - 1)], False


def _of_id(questions: list[Record], wanted: int | str) -> int:
    """The number of the question with an id."""
    for number, record in enumerate(questions):
        if str(record.id) == str(wanted):
            return number
    raise Problem(
        f"there is no question {wanted} among the {len(questions)} that a figure is chosen from. Their ids are such as "
        f"{', '.join(str(record.id) for record in questions[:3])}."
    )


def _draw(
    place: Path,
    experiment: FigureExperiment,
    setup: ThesisSetup,
    examples: Examples,
    index: int,
    choice: QuestionChoice,
    fits: bool,
) -> ThesisFigure:
    """Draw one picture, and say what it shows."""
    from matplotlib.figure import Figure

    from regard import show

    record = examples.questions[index]
    multimodal = MCA_4 in experiment.models
    panels: dict[str, tuple[TrainedModel, Kind]] = (
        {
            "continuous softmax": (SOFTMAX, SOFTMAX.kind),
            "2-MCA": (MCA_2, MCA_2.kind),
            "4-MCA": (MCA_4, MCA_4.kind),
            f"test-MCA, lambda {LAMBDAS[-1]}": (SOFTMAX, MixtureSelected(price_of(LAMBDAS[-1], setup.cells))),
        }
        if multimodal
        else {
            "discrete softmax": (DISCRETE, DISCRETE.kind),
            "continuous softmax": (SOFTMAX, SOFTMAX.kind),
            "continuous sparsemax": (SPARSEMAX, SPARSEMAX.kind),
        }
    )
    attentions: dict[str, Tensor | Density] = {}
    answers: dict[str, str] = {}
    for name, (model, kind) in panels.items():
        answer, attention = _ask(setup.job(model, 0), examples, index, kind)
        answers[name] = answer
        attentions[f"{name}: {answer}"] = attention
    picture = read(examples.records.pictures[record.picture])
    columns = 2 if multimodal else 4
    figure = show.compare(picture, attentions, columns=columns, original=not multimodal)
    truth = commonest(record.answers)
    assert isinstance(figure, Figure)  # not a part of one: no axes were given
    figure.suptitle(f"{record.question}  ({truth})")
    with replacing(place) as beside:
        figure.savefig(beside, format="png", dpi=110)
    return ThesisFigure(place, record.question, truth, answers, fits, choice, record.id)


@torch.no_grad()
def _ask(job: Job, examples: Examples, index: int, kind: Kind) -> tuple[str, Tensor | Density]:
    """The answer of a run to one question, and its attention."""
    run = load_run(job.out.path)
    inputs = examples.shared([index])
    scores, looked = run.model(inputs["features"], inputs["words"], inputs["rows"], attention=kind)
    answer = run.answers.spelled[int(scores.argmax())]
    if looked.density is not None:
        return answer, members(looked.density)[0]
    return answer, looked.weights[0].reshape(run.model.cells)
