"""What the question alone gives away: a baseline that never sees a picture."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise

import torch
from torch import nn

from regard.vqa.accuracy import Accuracy
from regard.vqa.evaluate import accuracy_of
from regard.vqa.records import Answers, Record, commonest
from regard.vqa.words import tokens

_ROWS = 1 << 15  # words and pairs of words share rows of this table only by accident


def question_only(train: list[Record], test: list[Record], seed: int = 0) -> Accuracy:
    """The accuracy of a linear model on words and pairs of neighbouring words, trained on answers.

    >>> asked = [Record(i, "a", "is it " + w, (w,) * 10) for i, w in enumerate(["red", "blue"] * 50)]
    >>> question_only(asked, asked).overall
    100.0
    """
    answers = Answers.of(train, above=0)
    best = torch.tensor([answers.numbers.get(_normal(record), 0) for record in train])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.EmbeddingBag(_ROWS, len(answers), mode="sum")
        nn.init.zeros_(model.weight)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    bags = [_bag(record.question) for record in train]
    for _ in range(8):
        for start in range(0, len(train), 512):
            chosen = order[start : start + 512].tolist()
            loss = nn.functional.cross_entropy(model(*_flat([bags[i] for i in chosen])), best[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        guessed = model(*_flat([_bag(record.question) for record in test])).argmax(-1).tolist()
    return _accuracy(test, [answers.known[i] for i in guessed])


def majority(train: list[Record], test: list[Record]) -> Accuracy:
    """The accuracy of the commonest answer to the type of question."""
    counts: dict[str, Counter[str]] = {}
    for record in train:
        counts.setdefault(record.question_type, Counter())[_normal(record)] += 1
    known = {kind: counter.most_common(1)[0][0] for kind, counter in counts.items()}
    return _accuracy(test, [known.get(record.question_type, "") for record in test])


def _normal(record: Record) -> str:
    return commonest(Answers.of([record], above=0).known) if record.answers else ""


def _accuracy(test: list[Record], guessed: list[str]) -> Accuracy:
    return accuracy_of(test, {r.id: g for r, g in zip(test, guessed, strict=True)})


def _bag(question: str) -> list[int]:
    words = tokens(question)
    return [_hashed_row(part) for part in (*words, *(f"{a} {b}" for a, b in pairwise(words)))] or [0]


@lru_cache(1 << 16)
def _hashed_row(text: str) -> int:
    number = 0
    for byte in text.encode():
        number = (number * 257 + byte) % 1_000_003
    return number % _ROWS


def _flat(bags: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *(len(bag) for bag in bags[:-1])]).cumsum(0)
    return torch.tensor([row for bag in bags for row in bag]), starts
