"""Asking a trained model: the answer, and what it looked at."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard._problem import Problem
from regard.backbones import Backbone
from regard.continuous import Density, Mixture
from regard.continuous.density import Elliptical
from regard.hub import Pretrained
from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder
from regard.vqa.grids import grids
from regard.vqa.kinds import NAMES, Kind, parse
from regard.vqa.mcan import MCAN
from regard.vqa.quality import attention_map, measure
from regard.vqa.records import Answers
from regard.vqa.results import FOLDER, Results
from regard.vqa.words import Words, tokens

_SHOWN = 96  # side of the map that entropy and area are measured on


@dataclass(frozen=True)
class Prediction:
    """An answer and how it came about.

    `top` are the likeliest answers with their scores between 0 and 1; `confidence` is the first one's. `weights` (h, w)
    is the discrete distribution over the cells, `effective` (h, w) what each cell really contributed, `density` the
    continuous density on the unit square (x to the right, y down), or None for a discrete attention.
    `entropy` is in bits against the uniform distribution (0), `support_area` the share of the picture with attention.

    >>> from regard.backbones import make_backbone
    >>> from regard.vqa.mcan import small
    >>> backbone, words = make_backbone("small", widths=[4], depths=[1], size=16), Words.of(["What is it?"])
    >>> side = backbone(backbone.prepare(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))).shape[-2:]
    >>> model = MCAN(small(), vocabulary=len(words), answers=2, cells=tuple(side), features=4)
    >>> predictor = Predictor(model, backbone, words, Answers(("a cat", "a dog")))
    >>> prediction = predictor.ask(torch.zeros(3, 20, 30, dtype=torch.uint8), "What is it?", "continuous-softmax")
    >>> len(prediction.top), prediction.density.mean.shape, prediction.map(20, 30).shape
    (2, torch.Size([2]), torch.Size([20, 30]))
    """

    question: str
    answer: str
    confidence: float
    top: list[tuple[str, float]]
    attention: str
    weights: Tensor
    effective: Tensor
    density: Density | None
    entropy: float
    support_area: float
    seconds: float
    words: list[tuple[str, float]]  # the question's words and their attention

    def map(self, height: int, width: int) -> Tensor:
        """The attention as a picture (height, width): mass on each pixel."""
        return attention_map(self.weights.unsqueeze(0), self.density, (height, width))[0]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain numbers and lists."""
        return {
            "question": self.question,
            "answer": self.answer,
            "confidence": round(self.confidence, 6),
            "top": [{"answer": answer, "score": round(score, 6)} for answer, score in self.top],
            "attention": self.attention,
            "weights": _numbers(self.weights),
            "effective_weights": _numbers(self.effective),
            "density": describe(self.density),
            "entropy": round(self.entropy, 4),
            "support_area": round(self.support_area, 6),
            "seconds": round(self.seconds, 4),
            "words": [{"word": word, "weight": round(weight, 6)} for word, weight in self.words],
        }


def _first(density: Density | None) -> Density | None:
    """The first density of a batch, without the batch."""
    if isinstance(density, Mixture):
        parts = density.parts
        return Mixture(density.mixing[0], type(parts)(parts.mean[0], parts.covariance[0]))
    if isinstance(density, Elliptical):
        return type(density)(density.mean[0], density.covariance[0])
    return density


def describe(density: Density | None) -> dict[str, Any] | None:
    """One density as plain numbers: family, components with share, mean and covariance."""
    if density is None:
        return None
    parts = density.parts if isinstance(density, Mixture) else density
    means, covariances = parts.mean.reshape(-1, 2), parts.covariance.reshape(-1, 2, 2)
    shares = density.mixing.reshape(-1).tolist() if isinstance(density, Mixture) else [1.0]
    components = [
        {"share": round(share, 6), "mean": _numbers(mean), "covariance": _numbers(covariance)}
        for share, mean, covariance in zip(shares, means, covariances, strict=True)
        if share > 0
    ]
    return {"family": type(parts).__name__.lower(), "components": components}


class Predictor(Pretrained):
    """A trained model with its backbone and vocabularies, ready to be asked.

        predictor = Predictor.from_pretrained("out/vqa")             # a run, a saved model, "user/name" on the Hub
        prediction = predictor.ask(regard.pictures.read("cat.jpg"), "What colour is the cat?")
        prediction.answer, prediction.density, prediction.to_json()

    `attention` is the kind of output attention that it was trained with; `attentions` are names that `ask` takes (and
    others: `regard.vqa.kinds`), and `labels` says each in words. Asking changes nothing in the model and draws no
    random number: one predictor serves any number of threads. `results` are those of an evaluation, if there was one:
    they go with the model, and into its card.

    >>> Predictor.load("nowhere")
    Traceback (most recent call last):
    regard._problem.Problem: nowhere has no checkpoint. ...
    """

    def __init__(
        self,
        model: MCAN,
        backbone: Backbone,
        words: Words,
        answers: Answers,
        stages: bool = False,
        results: Results | None = None,
    ) -> None:
        """From its parts; `load` reads them from a folder."""
        self.stages, self.results = stages, results
        self.model, self.backbone, self.words, self.answers = model.eval(), backbone.eval(), words, answers
        self.attention = model.attention
        self.attentions: list[str] = list(dict.fromkeys((self.attention, *NAMES)))
        self.labels = {name: parse(name).label for name in self.attentions}

    @classmethod
    def load(cls, checkpoint: Path | str) -> Self:
        """The model of a run's folder, of one of its checkpoints, or of a folder that `save_pretrained` wrote."""
        from regard.vqa.store import load_run

        run = load_run(checkpoint)
        results = Results.beside(run.folder)
        return cls(run.model, run.load_backbone(), run.words, run.answers, run.stages, results)

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The README.md of this model, under the name that it is loaded by, with its results."""
        from regard.vqa.cards import predictor_card

        return predictor_card(self, name, license, self.results)

    def _write(self, place: ModelFolder) -> None:
        from regard.vqa.store import save_model

        save_model(place, self.model, self.words, self.answers, self.backbone, self.stages)
        if self.results is not None:
            self.results.write(place.path / FOLDER)

    @classmethod
    def _opened(cls, place: ModelFolder) -> Self:
        return cls.load(place.path)

    @torch.no_grad()  # and not inference_mode: what is kept for the next call may be trained with
    def ask(self, picture: Tensor, question: str, attention: str | Kind | None = None, top: int = 5) -> Prediction:
        """Answer a question about a picture (3, H, W) uint8, with another kind of output attention if one is given."""
        began = time.perf_counter()
        kind = parse(attention or self.attention)
        read = tokens(question)
        if not read:
            raise Problem("the question is empty. Ask something about the picture.")
        if not any(word in self.words.numbers for word in read):
            raise Problem(f"the model knows no word of {question[:100]!r}. Ask in the language that it was trained in.")
        length = self.model.settings.tokens
        numbers = self.words.encode(question, length)[None]
        prepared = self.backbone.prepare(picture[None])
        grid = grids(self.backbone, prepared, self.stages).half().float()  # as features are stored
        scores, looked = self.model(grid, numbers, attention=kind)
        best = scores[0].sigmoid().topk(min(top, len(self.answers)))
        ranked = [(self.answers.known[i], float(s)) for s, i in zip(best.values, best.indices.tolist(), strict=True)]
        cells = self.model.cells
        weights, effective = (x[0].float().reshape(cells) for x in (looked.weights, looked.effective))
        shown = attention_map(weights[None], looked.density, (_SHOWN, _SHOWN))
        quality = measure(shown, torch.zeros_like(shown, dtype=torch.bool), cells)
        on_words = self.model.look_at_words(numbers)[0]
        return Prediction(
            question,
            ranked[0][0],
            ranked[0][1],
            ranked,
            str(kind),
            weights.clone(),
            effective.clone(),
            _first(looked.density),
            float(quality.entropy),
            float(quality.support),
            time.perf_counter() - began,
            [(word, float(w)) for word, w in zip(read[:length], on_words, strict=False)],
        )


def _numbers(x: Tensor) -> Any:
    def rounded(values: Any) -> Any:
        return [rounded(v) for v in values] if isinstance(values, list) else _round(values)

    return rounded(x.tolist())


def _round(value: float) -> float:
    return round(value, 6) if math.isfinite(value) else 0.0
