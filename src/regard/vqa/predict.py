"""Inference: the answer of a trained model, and its attention."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard._problem import Problem
from regard._rounded import rounded
from regard.backbones import Backbone
from regard.continuous import Density
from regard.continuous.members import describe_density, members, on_cpu
from regard.hub import Pretrained
from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder
from regard.vqa.attention_quality import attention_map, attention_quality
from regard.vqa.description import UNNAMED, FeatureDescription
from regard.vqa.function_words import function_words
from regard.vqa.grids import grids
from regard.vqa.kinds import NAMES, Kind, parse
from regard.vqa.looks import half_of_attention
from regard.vqa.mcan import MCAN, MixingLayer
from regard.vqa.records import Answers
from regard.vqa.results import RESULTS_FOLDER, Results
from regard.vqa.tracing import trace
from regard.vqa.words import Words, tokens

_SIDE = 96  # pixels of a side of the map that entropy and support are measured on


class NoKnownWord(Problem):
    """A question of which the model knows no word: `unknown` are its words, `examples` some that the model knows."""

    def __init__(self, unknown: list[str], examples: list[str]) -> None:
        """Say so, with the examples."""
        self.unknown, self.examples = unknown, examples
        known = f"It knows, for example: {', '.join(examples)}." if examples else "It knows no words at all."
        super().__init__(f"this model knows no word of the question. {known}")


@dataclass(frozen=True)
class Prediction:
    """An answer with its scores and the attention behind it.

    `top` are the best answers with their scores between 0 and 1; `confidence` is the score of the first. `weights`
    (h, w) is the discrete distribution over the cells, `effective` (h, w) the factor of each cell's feature, `density`
    the continuous density on the unit square (x to the right, y down), or None for a discrete attention.
    `entropy` is in bits, 0 for the uniform distribution; `support_area` is the share of the picture with attention,
    `half_area` the smallest share that holds half of it. `words` are those of the question that were read, with their
    attention weights; `word_roles` says of each "content", "function" (such as "is" and "the") or "unknown"; `unread`
    are the words after the last that the model reads. `traced` (h, w) are the effective weights traced back through
    self-attention to where the information came from (`regard.vqa.tracing`), and `moved` the share of them that came
    from elsewhere; None for a model that cannot be traced.

    >>> from regard.backbones import make_backbone
    >>> from regard.vqa.settings import small
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
    words: list[tuple[str, float]]
    word_roles: list[str]
    unread: list[str]
    half_area: float
    traced: Tensor | None = None
    moved: float | None = None

    def map(self, height: int, width: int) -> Tensor:
        """The attention on each pixel (height, width), as mass."""
        return attention_map(self.weights.unsqueeze(0), self.density, (height, width))[0]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "question": self.question,
            "answer": self.answer,
            "score": round(self.confidence, 6),
            "top": [{"answer": answer, "score": round(score, 6)} for answer, score in self.top],
            "attention": self.attention,
            "weights": rounded(self.weights),
            "effective_weights": rounded(self.effective),
            "density": None if self.density is None else describe_density(self.density),
            "entropy": round(self.entropy, 4),
            "support_area": round(self.support_area, 6),
            "seconds": round(self.seconds, 4),
            "half_area": round(self.half_area, 6),
            "traced_weights": None if self.traced is None else rounded(self.traced),
            "moved": None if self.moved is None else round(self.moved, 6),
            "words": [
                {"word": word, "weight": round(weight, 6), "role": role}
                for (word, weight), role in zip(self.words, self.word_roles, strict=True)
            ],
            "unread": self.unread,
        }


class Predictor(Pretrained):
    """A trained model with its backbone and vocabularies, ready to answer questions.

        predictor = Predictor.from_pretrained("out/vqa")             # a run, a saved model, "user/name" on the Hub
        prediction = predictor.ask(regard.pictures.read("cat.jpg"), "What colour is the cat?")
        prediction.answer, prediction.density, prediction.to_json()

    `attention` is the kind of output attention that it was trained with; `attentions` are names that `ask` takes (all:
    `regard.vqa.kinds`), and `labels` has each in words. `ask` does not change the model and draws no random number:
    one predictor serves any number of threads. `results` of an evaluation, or None, are saved with the model and shown
    in its card.

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
        """Put the parts together; `load` reads them from a folder.

        `model`, `backbone`: put into evaluation mode.
        `words`, `answers`: the model's vocabularies.
        `stages`: whether features are the maps of all stages, see `regard.vqa.grids`; default False.
        `results`: of an evaluation; default None.
        """
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
        results = Results.beside(run.folder.path)
        return cls(run.model, run.load_backbone(), run.words, run.answers, run.features.stages, results)

    def to(self, device: torch.device | str) -> Self:
        """Answer on a device from now on; answers are tensors of the CPU all the same."""
        self.model.to(device)
        self.backbone.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where it answers."""
        return next(self.model.parameters()).device

    @cached_property
    def features(self) -> FeatureDescription:
        """The description of the features that the model takes."""
        return FeatureDescription.of(self.backbone, UNNAMED, self.stages)

    @cached_property
    def function_words(self) -> frozenset[str]:
        """The function words of the language of its vocabulary, see `regard.vqa.function_words`."""
        return function_words(self.words)

    def some_words(self, count: int = 8) -> list[str]:
        """Some content words that the model knows, evenly spread over its vocabulary; default eight."""
        content = [w for w in self.words.known if w not in self.function_words and w.isalpha() and len(w) > 2]
        content = content or list(self.words.known)
        return content[:: -(-len(content) // count)] if content else []

    def _role(self, word: str) -> str:
        if word not in self.words.numbers:
            return "unknown"
        return "function" if word in self.function_words else "content"

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The model card, with results; `name` is the folder or repository that the model is loaded from."""
        from regard.vqa.cards import predictor_card

        return predictor_card(self, name, license, self.results)

    def _write(self, place: ModelFolder) -> None:
        from regard.vqa.store import save_model

        save_model(place, self.model, self.words, self.answers, self.backbone, self.features)
        if self.results is not None:
            self.results.write(place.path / RESULTS_FOLDER)

    @classmethod
    def _opened(cls, place: ModelFolder) -> Self:
        return cls.load(place.path)

    @torch.no_grad()  # not inference_mode: tensors cached for the next call may be trained with
    def ask(self, picture: Tensor, question: str, attention: str | Kind | None = None, top: int = 5) -> Prediction:
        """Answer a question about a picture.

        `picture`: (3, H, W) uint8.
        `question`: its text.
        `attention`: the kind of output attention, a name or a value; default that of the training.
        `top`: how many of the best answers to return; default 5.
        """
        start = time.perf_counter()
        kind = parse(attention or self.attention)
        question_words = tokens(question)
        if not question_words:
            raise Problem("the question is empty. Ask something about the picture.")
        length = self.model.settings.tokens
        if not any(word in self.words.numbers for word in question_words[:length]):
            raise NoKnownWord(question_words, self.some_words())
        numbers = self.words.encode(question, length)[None].to(self.device)
        prepared = self.backbone.prepare(picture[None].to(self.device))
        grid = grids(self.backbone, prepared, self.stages).half().float()  # rounded as stored features are
        visited: list[MixingLayer] = []
        scores, looked = self.model(grid, numbers, attention=kind, visited=visited)
        traced = trace(self.model, looked, visited)
        best = self.model.probabilities(scores)[0].topk(min(top, len(self.answers)))
        ranked = [(self.answers.spelled[i], float(s)) for s, i in zip(best.values, best.indices.tolist(), strict=True)]
        cells = self.model.cells
        weights, effective = (x[0].float().reshape(cells).cpu() for x in (looked.weights, looked.effective))
        density = None if looked.density is None else on_cpu(looked.density)
        maps = attention_map(weights[None], density, (_SIDE, _SIDE))
        quality = attention_quality(maps, torch.zeros_like(maps, dtype=torch.bool), cells)
        word_weights = self.model.look_at_words(numbers)[0].tolist()
        density = None if density is None else members(density)[0]
        return Prediction(
            question,
            ranked[0][0],
            ranked[0][1],
            ranked,
            str(kind),
            weights.clone(),
            effective.clone(),
            density,
            float(quality.entropy),
            float(quality.support),
            time.perf_counter() - start,
            list(zip(question_words[:length], word_weights, strict=False)),
            [self._role(word) for word in question_words[:length]],
            question_words[length:],
            half_of_attention(weights, density),
            None if traced is None else traced.shares[0].float().reshape(cells).cpu().clone(),
            None if traced is None else float(traced.moved),
        )
