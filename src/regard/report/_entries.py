"""Entries of a report: a question about a picture with its predictions, and the answers that people gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from regard import _check
from regard.continuous import Density
from regard.vqa.evaluate import accuracy_of
from regard.vqa.records import Record


class Predicted(Protocol):
    """The attributes of a prediction that a report shows; `regard.vqa.Prediction` has them all.

    >>> from regard.vqa import Prediction
    >>> {"answer", "top", "weights", "density"} <= set(Prediction.__annotations__), hasattr(Prediction, "to_json")
    (True, True)
    """

    @property
    def answer(self) -> str:
        """The answer."""

    @property
    def confidence(self) -> float:
        """Its score, from 0 to 1."""

    @property
    def top(self) -> Sequence[tuple[str, float]]:
        """The best answers with their scores, best first."""

    @property
    def attention(self) -> str:
        """The name of the attention."""

    @property
    def weights(self) -> Tensor:
        """Discrete weights, (h, w)."""

    @property
    def density(self) -> Density | None:
        """The density of continuous attention; None for discrete."""

    @property
    def effective(self) -> Tensor:
        """What each cell contributed to the context, (h, w)."""

    @property
    def entropy(self) -> float:
        """Entropy of the attention, in bits."""

    @property
    def support_area(self) -> float:
        """Share of the picture with a weight or density above zero."""

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""


@dataclass(frozen=True)
class Entry:
    """One question about one picture (3, H, W), with the answer under each attention.

    `predictions`: one per attention; the first is the one that the report marks as right or wrong.
    `answers`: those that people gave; default none: then nothing is marked.
    `group`: the type of the question, by which a report can be filtered; default none.
    `name`: of the picture; default none.
    `unknown`: words of the question that the model does not know; default none.
    `labelled`: the answer is the name of a class, compared letter by letter, and the question is what the picture is
        called; default False.

    >>> import torch
    >>> Entry(torch.zeros(3, 4, 4), "What is it?", [])
    Traceback (most recent call last):
    ValueError: predictions: got none, expected one for each of some attentions. Ask with each attention once.
    """

    picture: Tensor
    question: str
    predictions: Sequence[Predicted]
    answers: Sequence[str] = ()
    group: str = ""
    name: str = ""
    unknown: Sequence[str] = ()
    labelled: bool = False

    @property
    def truth_words(self) -> str:
        """The words before the answers that are known."""
        return "it is" if self.labelled else "people said"

    def __post_init__(self) -> None:
        """Check that there is a prediction, and one per attention."""
        names = [p.attention for p in self.predictions]
        if not names or len(set(names)) < len(names):
            got = ", ".join(names) or "none"
            _check.complain("predictions", got, "one for each of some attentions", "Ask with each attention once.")

    def credit(self, predicted: Predicted) -> float | None:
        """How right a prediction is, from 0 to 1, as in the accuracy of VQA; None if no answers are known.

        >>> import torch
        >>> from types import SimpleNamespace
        >>> red = SimpleNamespace(attention="mine", answer="red")
        >>> Entry(torch.zeros(3, 4, 4), "What colour?", [red], ["Red"] * 10).credit(red)
        1.0
        """
        if not self.answers:
            return None
        if self.labelled:
            return float(predicted.answer in self.answers)
        return accuracy_of([Record(0, "", "", tuple(self.answers), lenient=True)], {0: predicted.answer}).each[0]

    def to_json(self) -> dict[str, Any]:
        """The question, each prediction as `regard ask --json` prints it, and what else is known."""
        known = {"answers": list(self.answers), "type": self.group, "picture": self.name, "unknown": list(self.unknown)}
        told = {key: value for key, value in known.items() if value}
        return {"question": self.question, "predictions": [p.to_json() for p in self.predictions], **told}
