"""What goes into a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from regard import _check
from regard.continuous import Density


class Predicted(Protocol):
    """What a report needs to know of an answer: `regard.vqa.Prediction` has all of it.

    >>> from regard.vqa import Prediction
    >>> {"answer", "top", "weights", "density"} <= set(Prediction.__annotations__), hasattr(Prediction, "to_json")
    (True, True)
    """

    @property
    def answer(self) -> str:
        """The answer."""

    @property
    def confidence(self) -> float:
        """Its probability."""

    @property
    def top(self) -> Sequence[tuple[str, float]]:
        """The best answers with their scores, best first."""

    @property
    def attention(self) -> str:
        """The name of the attention that looked."""

    @property
    def weights(self) -> Tensor:
        """Discrete weights, (h, w)."""

    @property
    def density(self) -> Density | None:
        """The density, where attention is continuous."""

    @property
    def effective(self) -> Tensor:
        """What each cell contributed to the context, (h, w)."""

    @property
    def entropy(self) -> float:
        """Entropy of the attention."""

    @property
    def support_area(self) -> float:
        """Share of the picture that is looked at."""

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""


@dataclass(frozen=True)
class Entry:
    """One question about one picture (3, H, W), with the answer under each attention.

    >>> import torch
    >>> Entry(torch.zeros(3, 4, 4), "What is it?", [])
    Traceback (most recent call last):
    ValueError: predictions: got none, expected one for each of some attentions. Ask with each attention once.
    """

    picture: Tensor
    question: str
    predictions: Sequence[Predicted]

    def __post_init__(self) -> None:
        """There is something to report, and one answer for each attention."""
        names = [p.attention for p in self.predictions]
        if not names or len(set(names)) < len(names):
            got = ", ".join(names) or "none"
            _check.complain("predictions", got, "one for each of some attentions", "Ask with each attention once.")

    def to_json(self) -> dict[str, Any]:
        """The question, and each prediction as `regard ask --json` prints it."""
        return {"question": self.question, "predictions": [p.to_json() for p in self.predictions]}
