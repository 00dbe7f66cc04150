"""Baselines that never see a picture: the answer from the question alone."""

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

_ROWS = 1 << 15  # size of the hash table of words and pairs of words


def question_only(train: list[Record], test: list[Record], seed: int = 0) -> Accuracy:
    """The accuracy of a linear model on words and pairs of neighbouring words, trained on the commonest answers.

    >>> records = [Record(i, "a", "is it " + w, (w,) * 10) for i, w in enumerate(["red", "blue"] * 50)]
    >>> question_only(records, records).overall
    100.0
    """
    answers = Answers.of(train, above=0)
    labels = torch.tensor([answers.numbers.get(_normal(record), 0) for record in train])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.EmbeddingBag(_ROWS, len(answers), mode="sum")
        nn.init.zeros_(model.weight)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    bags = [_bag(record.question) for record in train]
    for _ in range(8):
        for start in range(0, len(train), 512):
            batch = order[start : start + 512].tolist()
            loss = nn.functional.cross_entropy(model(*_flat([bags[i] for i in batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        guesses = model(*_flat([_bag(record.question) for record in test])).argmax(-1).tolist()
    return _accuracy(test, [answers.spelled[i] for i in guesses])


def majority(train: list[Record], test: list[Record]) -> Accuracy:
    """The accuracy of the commonest answer of each question type."""
    counts: dict[str, Counter[str]] = {}
    for record in train:
        counts.setdefault(record.question_type, Counter())[_normal(record)] += 1
    commonest_of = {kind: counter.most_common(1)[0][0] for kind, counter in counts.items()}
    return _accuracy(test, [commonest_of.get(record.question_type, "") for record in test])


def answer_baselines(train: list[Record], test: list[Record]) -> dict[str, Accuracy]:
    """The accuracies of both baselines, by the names that they have in tables."""
    return {"question only": question_only(train, test), "majority": majority(train, test)}


def _normal(record: Record) -> str:
    """The commonest answer to a question, normalised; "" if it has none."""
    return commonest(Answers.of([record], above=0).known) if record.answers else ""


def _accuracy(test: list[Record], guesses: list[str]) -> Accuracy:
    return accuracy_of(test, {r.id: g for r, g in zip(test, guesses, strict=True)})


def _bag(question: str) -> list[int]:
    """The rows of the table for the words and pairs of words of a question."""
    words = tokens(question)
    return [_hashed_row(part) for part in (*words, *(f"{a} {b}" for a, b in pairwise(words)))] or [0]


@lru_cache(1 << 16)
def _hashed_row(text: str) -> int:
    number = 0
    for byte in text.encode():
        number = (number * 257 + byte) % 1_000_003
    return number % _ROWS


def _flat(bags: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Bags one after the other, and where each starts, as `nn.EmbeddingBag` takes them."""
    starts = torch.tensor([0, *(len(bag) for bag in bags[:-1])]).cumsum(0)
    return torch.tensor([row for bag in bags for row in bag]), starts
