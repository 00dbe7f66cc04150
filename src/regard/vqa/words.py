"""From a question to numbers: tokens, the vocabulary of words, word vectors from a GloVe file."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from regard._problem import Problem

PAD, UNKNOWN_WORD = 0, 1
_DELETED = str.maketrans("-/", "  ", ".,'!?\"()*#:;")


def tokens(question: str) -> list[str]:
    """The words of a question: lower case, without punctuation, - and / as spaces.

    Accented letters are composed (NFC): keyboards and file systems write the same word in two ways.

    >>> tokens("What's the T-shirt's colour?")
    ['whats', 'the', 't', 'shirts', 'colour']
    >>> tokens("Ba\u0308r") == tokens("B\u00e4r")
    True
    """
    return unicodedata.normalize("NFC", question.lower()).translate(_DELETED).split()


@dataclass(frozen=True)
class Words:
    """A vocabulary of words: 0 is padding, 1 an unknown word, then `known` from 2 on.

    >>> words = Words.of(["Is it red?", "Is it?"])
    >>> words.known, words.encode("is it blue", 5).tolist()
    (('is', 'it', 'red'), [2, 3, 1, 0, 0])
    """

    known: tuple[str, ...]

    @classmethod
    def of(cls, questions: Iterable[str]) -> Words:
        """All words of these questions, sorted."""
        return cls(tuple(sorted({word for question in questions for word in tokens(question)})))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: i for i, word in enumerate(self.known, start=2)}

    def __len__(self) -> int:
        """The number of words, with padding and unknown."""
        return len(self.known) + 2

    def encode(self, question: str, length: int) -> Tensor:
        """The numbers of the first `length` words, padded with zeros: (length,) int64."""
        numbers = [self.numbers.get(word, UNKNOWN_WORD) for word in tokens(question)[:length]]
        return torch.tensor(numbers + [PAD] * (length - len(numbers)))

    def unknown(self, question: str) -> list[str]:
        """The words of a question that are not known, each once.

        >>> Words.of(["Is it red?"]).unknown("Is it blue, or not blue?")
        ['blue', 'or', 'not']
        """
        return [word for word in dict.fromkeys(tokens(question)) if word not in self.numbers]

    @property
    def fingerprint(self) -> str:
        """A short hash: equal for vocabularies that give the same numbers."""
        return hashlib.sha256(json.dumps(self.known).encode()).hexdigest()[:16]


def read_glove(path: Path | str, words: Words, width: int | None = None) -> tuple[Tensor, int]:
    """Word vectors (len(words), width) from a GloVe text file, and how many of `words` it has.

    A line is a word and its numbers, with spaces between. The vectors of padding, unknown and words that are not in
    the file are zero. `width` is checked against the file; default that of its first line.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     _ = file.write("red 1 2\\nblue 3 4\\n"); file.flush()
    ...     vectors, count = read_glove(file.name, Words(("red", "square")))
    >>> vectors.tolist(), count
    ([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], 1)
    """
    vectors: Tensor | None = None
    count = 0
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                word, *values = line.rstrip().split(" ")
                if vectors is None:
                    vectors = torch.zeros(len(words), width or len(values))
                if word in words.numbers:
                    if len(values) != vectors.shape[1]:
                        expected = f"{vectors.shape[1]} numbers"
                        raise Problem(f"{path}, line {number}: {len(values)} numbers, not {expected}. Check the file.")
                    vectors[words.numbers[word]] = torch.tensor([float(v) for v in values])
                    count += 1
    except OSError as error:
        raise Problem(f"cannot read word vectors from {path}: {error.strerror}. Check the path.") from error
    except ValueError as error:
        if isinstance(error, Problem):
            raise
        raise Problem(f"{path}, line {number}: not a word with numbers ({error}). Check the file.") from error
    if vectors is None:
        raise Problem(f"{path} is empty. Give a GloVe text file.")
    return vectors, count
