"""Groups of questions, for accuracy by type: by the types in the data, else by the first words of a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from regard import _check
from regard.vqa.records import Record
from regard.vqa.words import tokens

Grouping = Literal["question type", "answer type", "first words"]

OTHERS = "others"
TYPES, BEGINNINGS = 12, 8  # groups shown: of types that the data has, of first words
_WORDS = 2  # of a question's beginning


def choose_grouping(records: Sequence[Record]) -> Grouping:
    """What to group these questions by: question type or answer type, the first that differs among them, else words.

    >>> choose_grouping([Record(1, "a", "Is it red?", ("yes",)), Record(2, "a", "What is it?", ("cat",))])
    'first words'
    """
    by: Grouping
    for by in ("question type", "answer type"):
        if len({group_of(record, by) for record in records}) > 1:
            return by
    return "first words"


def group_of(record: Record, by: Grouping) -> str:
    """The group of a question: one of its types, or its first two words in small letters; "others" if it has none.

    >>> group_of(Record(1, "a", "Welche Farbe hat das Haus?"), "first words")
    'welche farbe'
    """
    _check.choice("by", by, get_args(Grouping))
    if by == "first words":
        return " ".join(tokens(record.question)[:_WORDS]) or OTHERS
    return (record.question_type if by == "question type" else record.answer_type).strip() or OTHERS


def shown_groups(names: Sequence[str], by: Grouping) -> list[str]:
    """The groups to show, the commonest first: at most 12 types or 8 beginnings, and "others" for the rest, last.

    `names` is the group of each question.

    >>> shown_groups(["is it"] * 3 + ["what is"] + ["others"], "first words")
    ['is it', 'what is', 'others']
    """
    counts = Counter(names)
    limit = BEGINNINGS if by == "first words" else TYPES
    common = sorted((name for name in counts if name != OTHERS), key=lambda name: (-counts[name], name))
    # One group in place of "others" takes no more room.
    kept = common if len(common) <= limit + 1 and OTHERS not in counts else common[:limit]
    return [*kept, OTHERS] if len(kept) < len(counts) else kept
