"""A model that answers at once and in a way that is easy to check: it looks at the brightest cells.

It keeps to what `regard.vqa` promises of a predictor, so that the page and the report are tested without training.
"""

import threading
import time
from dataclasses import dataclass, field

import torch

from regard import continuous as C
from regard import sparsemax
from regard.continuous.members import describe_density
from regard.vqa.attention_quality import half_area
from regard.vqa.predict import NoKnownWord
from regard.vqa.words import tokens

SIDE = 8
CELLS = C.grid(SIDE, SIDE)
KINDS = {"discrete": None, "continuous softmax": 1, "continuous sparsemax": 2, "2 components": 1, "TVmax": None}
UNKNOWN, FUNCTION = {"zorkmid", "kalinka"}, {"what", "is", "the", "it"}


@dataclass(frozen=True)
class FakePrediction:
    question: str
    answer: str
    confidence: float
    top: list
    attention: str
    weights: torch.Tensor
    density: C.Density | None
    effective: torch.Tensor
    entropy: float
    support_area: float
    half_area: float
    seconds: float = field(compare=False, default=0.0)

    def to_json(self):
        other = ("weights", "effective", "density", "top", "confidence")
        plain = {k: v for k, v in vars(self).items() if k not in other}
        return plain | {
            "score": self.confidence,
            "top": [{"answer": answer, "score": score} for answer, score in self.top],
            "weights": self.weights.tolist(),
            "effective_weights": self.effective.tolist(),
            "density": None if self.density is None else describe_density(self.density),
            "words": [{"word": w, "weight": 0.5, "role": role(w)} for w in tokens(self.question)[:14]],
            "unread": tokens(self.question)[14:],
        }


def role(word):
    return "unknown" if word in UNKNOWN else "function" if word in FUNCTION else "content"


class FakePredictor:
    """`seconds` is how long an answer takes; `hold`, while set, keeps answers waiting."""

    attentions = tuple(KINDS)
    labels = {kind: f"{kind} attention" for kind in KINDS}  # noqa: RUF012

    def __init__(self, seconds=0.0):
        self.seconds, self.hold = seconds, threading.Event()
        self.asked = 0

    def ask(self, picture, question, attention=None):
        assert picture.dtype == torch.uint8
        assert picture.dim() == 3
        self.asked += 1
        deadline = time.monotonic() + 30
        while self.hold.is_set() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(self.seconds)
        if {role(word) for word in tokens(question)} == {"unknown"}:
            raise NoKnownWord(tokens(question), ["bright", "dark"])
        attention = attention or "discrete"
        grey = picture.float().mean(0, keepdim=True) / 255
        weights = sparsemax(20 * torch.nn.functional.adaptive_avg_pool2d(grey, SIDE).flatten())
        density = None
        if attention == "2 components":
            density = C.fit_mixture(weights, CELLS)
        elif KINDS[attention]:
            density = C.match_moments(weights, CELLS, KINDS[attention])
        answer = "yes" if float(grey.mean()) > 0.5 else "no"
        other = "no" if answer == "yes" else "yes"
        return FakePrediction(
            question,
            answer,
            0.75,
            [(answer, 0.75), (other, 0.2), ("maybe", 0.05)],
            attention,
            weights.view(SIDE, SIDE),
            density,
            weights.view(SIDE, SIDE) * 1.1 - 0.001,
            float(torch.special.entr(weights).sum()),
            float((weights > 0).float().mean()),
            float(half_area(weights.view(1, SIDE, SIDE))),
            self.seconds,
        )
