"""Splits of the benchmark: scenes with one balanced question of each family."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy
import torch
from torch import Tensor

from regard import _check
from regard.scenes.questions import ANSWER_TYPES, FAMILIES, TEMPLATES, Candidate, asks_held_out, candidates
from regard.scenes.render import SIZE, render
from regard.scenes.world import Scene, make_scene, named_generator

Split = Literal["train", "val", "test", "pairs"]
SPLITS: tuple[Split, ...] = ("train", "val", "test", "pairs")
"""The splits of the benchmark; "pairs" shows the pairs of colour and shape that training holds out."""


@dataclass(frozen=True)
class Question:
    """A question about the picture with this number, its answer, family, and the objects that the answer depends on.

    `regions` are numbers of objects, counted from one, as in `Rendered.objects`; none where the answer is "no" or 0.

    >>> first = Scenes("val", 1).questions[0]
    >>> first.family, first.picture, isinstance(first.regions, tuple)
    ('exists', 0, True)
    """

    id: int
    picture: int
    text: str
    answer: str
    family: str
    answer_type: str
    regions: tuple[int, ...]


@dataclass(frozen=True)
class Scenes:
    """A split of the benchmark: `count` scenes, drawn on access, with a question of each family for most of them.

    Splits are disjoint: a scene's name holds the seed, the split and its number, and all random numbers come from the
    name. "train", "val" and "test" show and ask no held-out pair of colour and shape; every scene of "pairs" has one,
    and its questions are about it. Answers are balanced within each form of question: of those that a scene allows, the
    least frequent one so far is taken. Deterministic: same seed, same bytes.

    `split`: "train", "val", "test" or "pairs".
    `count`: number of scenes.
    `seed`: of all random numbers; default 0.
    `size`: side of a picture in pixels; default 80.

    >>> scenes = Scenes("val", 4)
    >>> scenes.pictures.shape, len({q.family for q in scenes.questions})
    (torch.Size([4, 3, 80, 80]), 7)
    >>> scenes.questions == Scenes("val", 4).questions
    True
    """

    split: Split
    count: int
    seed: int = 0
    size: int = SIZE

    def __post_init__(self) -> None:
        """Check the settings."""
        _check.choice("split", self.split, SPLITS)
        _check.count("count", self.count)
        _check.count("size", self.size, at_least=32)

    def scene(self, number: int) -> Scene:
        """The objects of the picture with this number."""
        return make_scene(f"{self.seed}/{self.split}/{number}", held_out=self.split == "pairs")

    def picture(self, number: int) -> Tensor:
        """The picture with this number, (3, size, size) uint8."""
        return torch.from_numpy(render(self.scene(number), self.size).picture)

    def objects(self, number: int) -> Tensor:
        """For each pixel the object in front, counted from one, or 0: (size, size) uint8."""
        return torch.from_numpy(render(self.scene(number), self.size).objects)

    @property
    def pictures(self) -> Tensor:
        """All pictures, (count, 3, size, size) uint8: without labels, for pretraining."""
        return torch.stack([self.picture(i) for i in range(self.count)])

    @cached_property
    def questions(self) -> list[Question]:
        """The questions, in the order of the pictures."""
        questions: list[Question] = []
        frequency: Counter[tuple[str, str]] = Counter()  # of answers, per form
        for number in range(self.count):
            scene = self.scene(number)
            draw = named_generator(scene.name + "/questions")
            possible = [c for c in candidates(scene) if asks_held_out(c) == (self.split == "pairs")]
            for family in FAMILIES:
                chosen = _choose_question([c for c in possible if c.family == family], frequency, draw)
                if chosen is not None:
                    frequency[chosen.form, chosen.answer] += 1
                    questions.append(self._ask(len(questions), number, chosen, draw))
        return questions

    def _ask(self, id: int, number: int, chosen: Candidate, draw: numpy.random.RandomState) -> Question:
        """The question in words: a random template of its form, filled in."""
        templates = TEMPLATES.get(chosen.form, TEMPLATES.get(chosen.family, ()))
        text = templates[draw.randint(len(templates))].format(**chosen.words)
        return Question(
            id,
            number,
            text,
            chosen.answer,
            chosen.family,
            ANSWER_TYPES.get(chosen.family, "other"),
            tuple(i + 1 for i in chosen.regions),
        )


def _choose_question(
    possible: list[Candidate], frequency: Counter[tuple[str, str]], draw: numpy.random.RandomState
) -> Candidate | None:
    """A candidate of a random form, with the least frequent answer of that form."""
    if not possible:
        return None
    forms = sorted({c.form for c in possible})
    form = forms[draw.randint(len(forms))]
    possible = [c for c in possible if c.form == form]
    least = min(frequency[form, c.answer] for c in possible)
    possible = [c for c in possible if frequency[form, c.answer] == least]
    return possible[draw.randint(len(possible))]
