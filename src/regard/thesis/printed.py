"""Tables 6.2 to 6.4 and Figures 6.4 to 6.11 of the thesis as data: what is trained, and the figures it prints.

Nothing here is computed, and nothing heavy imported: the command line lists it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard._problem import Problem
from regard.vqa.kinds import BasisName, Continuous, Discrete, Kind, MixtureOf
from regard.vqa.settings import LAMBDAS

ACCURACY_COLUMNS = ("yes/no", "number", "other", "overall")
"""Columns of Tables 6.2 and 6.3, for each of two splits of VQA-v2."""

Accuracies = tuple[float, float, float, float]  # by ACCURACY_COLUMNS, in percent


@dataclass(frozen=True)
class TrainedModel:
    """A model that is trained for a table or a figure: its output attention, and the basis, None for a discrete one."""

    kind: Kind
    basis: BasisName | None = None

    @property
    def attention(self) -> str:
        """The name of its output attention."""
        return str(self.kind)

    @property
    def name(self) -> str:
        """The name of its runs.

        >>> TrainedModel(Continuous("softmax"), "thesis-49").name
        'continuous-softmax-thesis-49'
        """
        return self.attention if self.basis is None else f"{self.attention}-{self.basis}"


DISCRETE = TrainedModel(Discrete("softmax"))
SOFTMAX = TrainedModel(Continuous("softmax"), "thesis-100")
SOFTMAX_49 = TrainedModel(Continuous("softmax"), "thesis-49")
SPARSEMAX = TrainedModel(Continuous("sparsemax"), "thesis-100")
SPARSEMAX_49 = TrainedModel(Continuous("sparsemax"), "thesis-49")
MCA_2, MCA_4 = (TrainedModel(MixtureOf(k), "thesis-100") for k in (2, 4))


@dataclass(frozen=True)
class PrintedRow:
    """A row of Table 6.2 or 6.3.

    label            as it is printed
    model            what is trained for it
    penalty          lambda of test-MCA, in the thesis' scale: the model is evaluated with mixture-selected; else None
    dev, standard    what the thesis prints for test-dev and for test-standard
    """

    label: str
    model: TrainedModel
    penalty: float | None
    dev: Accuracies
    standard: Accuracies

    @property
    def functions(self) -> str:
        """The number N of basis functions."""
        return "-" if self.model.basis is None else self.model.basis.rpartition("-")[2]


_DISCRETE = (83.40, 43.59, 55.91, 65.83), (83.47, 42.99, 56.33, 66.13)
_SOFTMAX = (83.40, 44.80, 55.88, 65.96), (83.79, 44.33, 56.04, 66.27)
_SPARSEMAX = (83.10, 44.12, 55.95, 65.79), (83.38, 43.91, 56.14, 66.10)

ROWS_6_2 = (
    PrintedRow("Discrete softmax", DISCRETE, None, *_DISCRETE),
    PrintedRow("2D continuous softmax", SOFTMAX, None, *_SOFTMAX),
    PrintedRow("2D continuous softmax", SOFTMAX_49, None, (83.32, 44.29, 55.78, 65.82), (83.57, 43.70, 56.07, 66.12)),
    PrintedRow("2D continuous sparsemax", SPARSEMAX, None, *_SPARSEMAX),
    PrintedRow(
        "2D continuous sparsemax", SPARSEMAX_49, None, (83.38, 44.25, 55.87, 65.88), (83.69, 43.00, 56.09, 66.10)
    ),
)
"""Table 6.2."""

_TEST_MCA = (
    ((83.30, 44.60, 55.81, 65.86), (83.76, 44.08, 56.00, 66.21)),
    ((83.35, 44.75, 55.86, 65.92), (83.77, 44.28, 56.02, 66.25)),
    ((83.39, 44.75, 55.87, 65.95), (83.79, 44.36, 56.04, 66.27)),
)
ROWS_6_3 = (
    PrintedRow("Discrete", DISCRETE, None, *_DISCRETE),
    PrintedRow("2D continuous softmax", SOFTMAX, None, *_SOFTMAX),
    PrintedRow("2D continuous sparsemax", SPARSEMAX, None, *_SPARSEMAX),
    PrintedRow("2-MCA", MCA_2, None, (83.35, 44.28, 56.07, 65.97), (83.59, 43.65, 56.24, 66.21)),
    PrintedRow("4-MCA", MCA_4, None, (83.39, 43.52, 55.96, 65.85), (83.72, 43.47, 56.03, 66.14)),
    *(PrintedRow("test-MCA", SOFTMAX, one, *both) for one, both in zip(LAMBDAS, _TEST_MCA, strict=True)),
)
"""Table 6.3."""

SHARES_6_4 = {
    10: (58.58, 20.81, 8.02, 6.77, 5.82),
    100: (84.87, 11.22, 2.51, 1.00, 0.41),
    500: (96.17, 3.30, 0.40, 0.10, 0.03),
}
"""Table 6.4: percent of the examples with K* = 1 to 5 components, by lambda."""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the thesis: its name on the command line, what it shows, and what is trained for it."""

    name: str
    shows: str
    models: tuple[TrainedModel, ...]


@dataclass(frozen=True)
class TableExperiment(Experiment):
    """A table; its rows, if they are accuracies."""

    rows: tuple[PrintedRow, ...] = ()


Judged = Literal["right", "wrong"]
ChoiceOrder = Literal["scattered", "narrow", "wide", "many"]


@dataclass(frozen=True)
class QuestionChoice:
    """How the question of a figure is chosen; the thesis chose its own by eye.

    answer_type    of the question
    discrete       how the discrete model answers it; None for any way
    continuous     how both continuous models answer it; None for any way
    order          which comes first: the most scattered discrete attention, the narrowest or widest Gaussian, or the
                   largest number of components that test-MCA selects
    rank           the place in that order, counted from zero
    """

    answer_type: str
    discrete: Judged | None
    continuous: Judged | None
    order: ChoiceOrder
    rank: int = 0


@dataclass(frozen=True)
class FigureExperiment(Experiment):
    """A figure; the choices of its questions, one picture each."""

    choices: tuple[QuestionChoice, ...] = ()


_UNIMODAL = (DISCRETE, SOFTMAX, SPARSEMAX)
_MULTIMODAL = (DISCRETE, SOFTMAX, SPARSEMAX, MCA_2, MCA_4)
_SCATTERED = QuestionChoice("other", "wrong", "right", "scattered")
_WIDE = tuple(QuestionChoice("number", None, "right", "wide", rank) for rank in (0, 1))

EXPERIMENTS: tuple[Experiment, ...] = (
    TableExperiment("table-6.1", "the hyperparameters, printed beside those of --preset thesis", ()),
    TableExperiment(
        "table-6.2",
        "accuracy of discrete and 2D continuous attention, N of 49 and 100",
        (DISCRETE, SOFTMAX, SOFTMAX_49, SPARSEMAX, SPARSEMAX_49),
        ROWS_6_2,
    ),
    TableExperiment(
        "table-6.3", "accuracy with 2-MCA, 4-MCA and test-MCA beside them", (*_UNIMODAL, MCA_2, MCA_4), ROWS_6_3
    ),
    TableExperiment("table-6.4", "how many components test-MCA selects, by lambda", (SOFTMAX,)),
    FigureExperiment(
        "figure-6.4",
        "a question of type other: discrete attention is scattered, and wrong; continuous is focused, and right",
        _UNIMODAL,
        (_SCATTERED,),
    ),
    FigureExperiment(
        "figure-6.5",
        "a yes/no question: the same",
        _UNIMODAL,
        (QuestionChoice("yes/no", "wrong", "right", "scattered"),),
    ),
    FigureExperiment(
        "figure-6.6",
        "things that are far apart are counted: continuous attention is wrong, discrete right",
        _UNIMODAL,
        (QuestionChoice("number", "right", "wrong", "wide"),),
    ),
    FigureExperiment(
        "figure-6.7",
        "things in one small region are counted: continuous attention is right, discrete wrong",
        _UNIMODAL,
        (QuestionChoice("number", "wrong", "right", "narrow"),),
    ),
    FigureExperiment("figure-6.8", "two countings for which the ellipses become wide", _UNIMODAL, _WIDE),
    FigureExperiment(
        "figure-6.9",
        "a counting with continuous softmax, 2-MCA, 4-MCA and test-MCA, lambda 500",
        _MULTIMODAL,
        (QuestionChoice("number", None, "right", "many"),),
    ),
    FigureExperiment("figure-6.10", "the second question of figure-6.8 with these four", _MULTIMODAL, _WIDE[1:]),
    FigureExperiment("figure-6.11", "the question of figure-6.4 with these four", _MULTIMODAL, (_SCATTERED,)),
)
"""All of them, in the order of the thesis."""


def experiment(name: str) -> Experiment:
    """The experiment with a name; a Problem that lists them if there is none.

    >>> experiment("table-6.4").models[0].name
    'continuous-softmax-thesis-100'
    """
    for one in EXPERIMENTS:
        if one.name == name:
            return one
    raise Problem(f"there is no {name!r} here. Choose one of {', '.join(one.name for one in EXPERIMENTS)}.")
