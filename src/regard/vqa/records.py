"""Records: a question about a picture, with the answers people gave; and notes on records that were left out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from regard._problem import Problem
from regard.vqa.accuracy import normalise, soft_target
from regard.vqa.words import Words, tokens


@dataclass(frozen=True)
class Record:
    """One question: id, the picture's name, its text, the answers (none if unknown), types, regions.

    `regions` are what the answer rests on: numbers of objects in the picture, or names of masks; None if unknown.
    `lenient` answers are those of one's own table: the accuracy normalises them always, the official one only where
    people differ.
    """

    id: int | str
    picture: str
    question: str
    answers: tuple[str, ...] = ()
    answer_type: str = "other"
    question_type: str = ""
    regions: tuple[int | str, ...] | None = None
    lenient: bool = False


@dataclass
class Skipped:
    """Notes on what was left out while reading, in order: a kind, and a sentence naming the record.

    >>> skipped = Skipped(); skipped.add("empty question", "question 7 is empty")
    >>> print(skipped)
    Skipped: 1 empty question
      question 7 is empty
    """

    notes: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kind: str, sentence: str) -> None:
        """Add a note."""
        self.notes.append((kind, sentence))

    def __bool__(self) -> bool:
        return bool(self.notes)

    def __str__(self) -> str:
        """The number of each kind, and the first three sentences of each."""
        lines = []
        for kind, count in Counter(kind for kind, _ in self.notes).items():
            sentences = [sentence for k, sentence in self.notes if k == kind]
            lines.append(f"Skipped: {count} {kind}")
            lines += [f"  {sentence}" for sentence in sentences[:3]]
            if count > 3:
                lines.append(f"  ... and {count - 3} more")
        return "\n".join(lines)


@dataclass
class Records:
    """A split: records, where their pictures are, and what was skipped while reading."""

    name: str
    records: list[Record]
    pictures: dict[str, Path]
    skipped: Skipped = field(default_factory=Skipped)
    objects: dict[str, Path] = field(default_factory=dict)  # pictures of object numbers, by picture
    masks: dict[str, Path] = field(default_factory=dict)  # masks of regions, by their names in the records
    # The part of `objects` that the pictures show: top, left, height, width in pixels; None for all of them.
    shown: tuple[int, int, int, int] | None = None

    def __len__(self) -> int:
        return len(self.records)

    def keep_answered(self) -> Records:
        """Without questions that have no answers, which are noted in `skipped`."""
        for record in self.records:
            if not record.answers:
                self.skipped.add("question without an answer", f"question {record.id} of {self.name}")
        return replace(self, records=[record for record in self.records if record.answers])

    def keep_readable(self, words: Words, length: int) -> Records:
        """Without questions that are empty, far too long, or without a known word, which are noted in `skipped`."""
        readable = []
        for record in self.records:
            text = tokens(record.question)
            if not text:
                self.skipped.add("empty question", f"question {record.id} of {self.name} has no words")
                continue
            if len(text) > 10 * length:
                sentence = f"question {record.id} of {self.name} has {len(text)} words, more than {10 * length}"
                self.skipped.add("question that is too long", sentence)
                continue
            if not any(word in words.numbers for word in text):
                sentence = f"question {record.id} of {self.name} has no word that the model knows: {record.question!r}"
                self.skipped.add("question in unknown words", sentence[:200])
                continue
            readable.append(record)
        return replace(self, records=readable)


@dataclass(frozen=True)
class Answers:
    """The answers that a model can give.

    `known` are normalised, and decide which answers are the same; `spelled` are the same as people wrote them most
    often, which is what the model says (default `known`).

    >>> answers = Answers.of([Record(1, "a", "?", ("yes",) * 9 + ("no",)), Record(2, "b", "?", ("yes",) * 10)], above=2)
    >>> answers.known, answers.credits(Record(1, "a", "?", ("yes", "yes")))
    (('yes',), {0: 1.0})
    >>> Answers.of([Record(1, "a", "?", ("About a third",))], above=0)
    Answers(known=('about third',), spelled=('About a third',))
    """

    known: tuple[str, ...]
    spelled: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Spell answers as they are known, unless there is a spelling for each."""
        if len(self.spelled) != len(self.known):
            object.__setattr__(self, "spelled", self.known)

    @classmethod
    def of(cls, records: Iterable[Record], above: int = 8) -> Answers:
        """The answers given more than `above` times, normalised, the commonest first; default more than 8."""
        spellings: dict[str, Counter[str]] = {}
        for record in records:
            for answer in record.answers:
                spellings.setdefault(answer_key(answer), Counter())[answer.strip()] += 1
        counts = {answer: spelling.total() for answer, spelling in spellings.items()}
        common = sorted((answer for answer, n in counts.items() if n > above), key=lambda a: (-counts[a], a))
        return cls(tuple(common), tuple(_most_frequent(spellings[answer]) for answer in common))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each answer."""
        return {answer: i for i, answer in enumerate(self.known)}

    def __len__(self) -> int:
        return len(self.known)

    def credits(self, record: Record) -> dict[int, float]:
        """The target of each known answer that was given, by its number: 0.3, 0.6, 0.9 or 1 (`soft_target`).

        Counts of more or fewer than ten answers are scaled to ten.

        >>> Answers(("yes", "no")).credits(Record(1, "a", "?", ("no",) * 8 + ("yes",) * 2))
        {0: 0.6, 1: 1.0}
        """
        counts = Counter(answer_key(answer) for answer in record.answers)
        targets = {
            self.numbers[a]: soft_target(round(10 * n / counts.total())) for a, n in counts.items() if a in self.numbers
        }
        return {number: targets[number] for number in sorted(targets) if targets[number] > 0}

    @property
    def fingerprint(self) -> str:
        """A short hash: equal for vocabularies that give the same numbers."""
        return hashlib.sha256(json.dumps(self.known).encode()).hexdigest()[:16]


def answer_key(answer: str) -> str:
    """The normalised form by which answers are the same; in lower case alone if nothing would be left of it.

    >>> answer_key("The Cat."), answer_key("A"), answer_key(" ? ")
    ('cat', 'a', '?')
    """
    return normalise(answer) or answer.strip().lower()


def _most_frequent(counts: Counter[str]) -> str:
    """Of equally frequent ones the first in the alphabet, so that the order of the data does not matter."""
    return min(counts, key=lambda text: (-counts[text], text))


def commonest(answers: Sequence[str]) -> str:
    """The commonest answer; of equally common ones the first."""
    return Counter(answers).most_common(1)[0][0]


def check_vocabulary(name: str, fingerprint: str, expected: str) -> None:
    """Raise a Problem unless a vocabulary is the one that the model was trained with, by their fingerprints."""
    if fingerprint != expected:
        raise Problem(
            f"the vocabulary in {name} has fingerprint {fingerprint}, the model was trained with {expected}: it "
            "belongs to another run. Put the right file back, or train again."
        )
