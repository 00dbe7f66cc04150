"""Examples to train and evaluate on: words and answers as numbers, features read from the store."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem
from regard.vqa.features import FeatureStore
from regard.vqa.pixels import PixelStore
from regard.vqa.records import Answers, Record, Records
from regard.vqa.regions import Regions
from regard.vqa.words import Words


class Examples:
    """The records of a split that have features, `questions`, as batches: data for `regard.training.fit`.

    Words and targets are in memory, features stay on disk. Records without features are noted in `records.skipped`.
    """

    def __init__(
        self, records: Records, store: FeatureStore | PixelStore, words: Words, answers: Answers, length: int
    ) -> None:
        """Encode the questions and their targets.

        `records`: those without features are left out, and noted.
        `store`: the features, or the pictures.
        `words`, `answers`: the vocabularies.
        `length`: words of a question that are read; the rest is cut.
        """
        records = records.keep_readable(words, length)
        questions: list[Record] = []
        for record in records.records:
            if store.has(record.picture):
                questions.append(record)
            else:
                sentence = f"question {record.id} of {records.name}: no features of {record.picture} in {store.folder}"
                records.skipped.add("question whose picture has no features", sentence)
        if not questions:
            first = records.skipped.notes[0][1] if records.skipped else "it is empty"
            raise Problem(f"nothing is left of {records.name}: {first}. Check pictures, features and questions.")
        self.records, self.questions, self.store = records, questions, store
        self.words = torch.stack([words.encode(record.question, length) for record in questions])
        self.size = len(answers)
        credits = [answers.credits(record) for record in questions]
        self.target_rows = torch.tensor([number for each in credits for number in each], dtype=torch.int64)
        self.target_values = torch.tensor([credit for each in credits for credit in each.values()])
        counts = torch.tensor([len(each) for each in credits])
        self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])

    def __len__(self) -> int:
        return len(self.questions)

    def batch(self, indices: list[int], epoch: int = 0) -> dict[str, Any]:
        """Features (B, h, w, D), or pictures (B, 3, H, W) of a `PixelStore`; words (B, T), targets (B, A)."""
        return self.texts(indices) | {"features": self.store[[self.questions[i].picture for i in indices]]}

    def shared(self, indices: list[int]) -> dict[str, Any]:
        """As `batch`, but with each picture's features once, and `rows` (B,), the picture of each question."""
        names = [self.questions[i].picture for i in indices]
        row_of = {name: row for row, name in enumerate(dict.fromkeys(names))}
        rows = torch.tensor([row_of[name] for name in names])
        return self.texts(indices) | {"features": self.store[list(row_of)], "rows": rows}

    def texts(self, indices: list[int]) -> dict[str, Any]:
        """Words (B, T) and targets (B, A)."""
        targets = torch.zeros(len(indices), self.size)
        for row, i in enumerate(indices):
            span = slice(int(self.starts[i]), int(self.starts[i + 1]))
            targets[row, self.target_rows[span]] = self.target_values[span]
        return {"words": self.words[indices], "targets": targets}

    @cached_property
    def known_regions(self) -> Regions:
        """The regions of the answers, as masks of one size."""
        records = self.records
        return Regions(self.questions, records.objects, records.masks, records.skipped, records.shown)

    @property
    def has_regions(self) -> bool:
        """Whether the regions of any answer are known."""
        return bool(self.known_regions)

    def regions(self, indices: list[int]) -> Tensor:
        """Masks (B, H, W) of the pixels that each answer rests on; all False if there is no region."""
        return self.known_regions([self.questions[i] for i in indices])


class Grouped:
    """Examples grouped by picture: a sample is a picture with all its questions, so that its layers run once."""

    def __init__(self, examples: Examples) -> None:
        """Group the questions by picture."""
        self.examples = examples
        self.groups: dict[str, list[int]] = {}
        for i, record in enumerate(examples.questions):
            self.groups.setdefault(record.picture, []).append(i)
        self.names = list(self.groups)

    def __len__(self) -> int:
        """The number of pictures."""
        return len(self.names)

    def batch(self, indices: list[int], epoch: int = 0) -> dict[str, Any]:
        """All questions about these pictures, as `Examples.shared`."""
        return self.examples.shared([i for number in indices for i in self.groups[self.names[number]]])
