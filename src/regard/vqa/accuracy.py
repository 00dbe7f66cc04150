"""The official accuracy of visual question answering, which it reproduces exactly."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from regard import _check
from regard.vqa.contractions import CONTRACTIONS

Version = Literal["2021", "2017"]

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_NUMBERS = {"none": "0", "zero": "0"} | {
    word: str(i)
    for i, word in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], start=1)
}
_ARTICLES = {"a", "an", "the"}
# The official code runs on Python 2, where \d is 0 to 9 and no digit of another script.
_COMMA_IN_NUMBER = re.compile(r"\d,\d", re.ASCII)
_FULL_STOP = re.compile(r"\.(?!\d)", re.ASCII)
_FULL_STOPS = 32  # the official code passes a flag where the number of replacements belongs


@lru_cache(1 << 16)  # few answers are given many times
def normalise(answer: str) -> str:
    """An answer as the official code writes it: punctuation, number words, articles and contractions.

    A punctuation mark is deleted if it stands next to a space somewhere in the answer, or if a comma stands between
    digits somewhere; else it becomes a space. Full stops go unless a digit follows. Digits are 0 to 9, as on Python 2,
    which the official code is written for; capitals become small in all scripts.

    >>> normalise("The two dogs' ball, isnt it?"), normalise("1,000 m."), normalise("dark-blue")
    ("2 dogs' ball isn't it", '1000 m', 'dark blue')
    """
    return _words(_punctuation(answer))


def vqa_accuracy(prediction: str, answers: Sequence[str], version: Version = "2021") -> float:
    """The accuracy of one prediction against the answers people gave, between 0 and 1.

    For each answer in turn, min(1, matches among the *others* / 3); the mean of these. Only where people disagree are
    the prediction and the answers normalised (`version="2021"`, what the evaluation server runs). The code of 2017,
    which is bundled with many models, always normalises the prediction, and of the answers only the punctuation.

    >>> vqa_accuracy("two", ["2"] * 9 + ["3"])
    1.0
    >>> vqa_accuracy("Yes", ["yes"] * 10), vqa_accuracy("Yes", ["yes"] * 10, version="2017")
    (0.0, 1.0)
    >>> round(vqa_accuracy("yes", ["yes", "yes", "no"]), 3)
    0.444
    """
    _check.choice("version", version, ("2021", "2017"))
    if isinstance(answers, str) or not answers:
        _check.complain("answers", repr(answers), "a list with at least one answer", "The official data has ten.")
    prediction = _strip(prediction)
    if version == "2021":
        answers = [_strip(answer) for answer in answers]
        if len(set(answers)) > 1:
            prediction, answers = normalise(prediction), [normalise(answer) for answer in answers]
    else:
        prediction = normalise(prediction)
        answers = [_punctuation(answer) for answer in answers] if len(set(answers)) > 1 else answers
    right = [answer == prediction for answer in answers]
    return sum(min(1.0, (sum(right) - itself) / 3) for itself in right) / len(right)


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracies in percent: overall, by answer type, by question type, and the number of questions of each.

    `each` maps a question's id to its accuracy.

    >>> annotation = {"question_id": 1, "answers": ["red"] * 10, "answer_type": "other", "question_type": "what"}
    >>> print(mean_accuracy({1: "red"}, [annotation]))
    overall 100.00
    answer type other: 100.00
    question type what: 100.00
    """

    overall: float
    by_answer_type: dict[str, float]
    by_question_type: dict[str, float]
    counts: dict[str, int]
    each: dict[int | str, float] = field(repr=False)

    def __str__(self) -> str:
        """Two decimals, as the official code prints them."""
        lines = [f"overall {self.overall:.2f}"]
        for title, group in (("answer type", self.by_answer_type), ("question type", self.by_question_type)):
            lines += [f"{title} {name}: {value:.2f}" for name, value in group.items()]
        return "\n".join(lines)


def mean_accuracy(
    predictions: Mapping[int | str, str], annotations: Iterable[Mapping[str, object]], version: Version = "2021"
) -> Accuracy:
    """The official aggregate: `predictions` by question id against `annotations` as VQA-v2 has them.

    An annotation has question_id, answers (strings, or records with an "answer"), answer_type and question_type. The
    set of ids must match exactly. Means are not rounded.

    >>> annotation = {"question_id": 1, "answers": ["red"] * 9 + ["pink"], "answer_type": "other", "question_type": ""}
    >>> mean_accuracy({1: "red"}, [annotation]).overall
    100.0
    """
    each: dict[int | str, float] = {}
    groups: dict[str, defaultdict[str, list[float]]] = {"answer": defaultdict(list), "question": defaultdict(list)}
    for annotation in annotations:
        name = annotation["question_id"]
        if name not in predictions:
            _check.complain("predictions", f"none for question {name}", "one for each annotation", "Answer all.")
        entries = annotation["answers"]
        answers = [a["answer"] if isinstance(a, Mapping) else a for a in entries]  # type: ignore[attr-defined]
        score = vqa_accuracy(predictions[name], answers, version)  # type: ignore[index]
        each[name] = score  # type: ignore[index]
        for kind, group in groups.items():
            group[str(annotation.get(f"{kind}_type", ""))].append(score)
    if extra := set(predictions) - set(each):
        _check.complain(
            "predictions", f"question {min(extra, key=str)}, without annotation", "the ids of the annotations", "Drop."
        )
    if not each:
        _check.complain("annotations", "none", "at least one", "There is no mean of nothing.")

    def percent(scores: list[float]) -> float:
        return 100 * sum(scores) / len(scores)

    return Accuracy(
        percent(list(each.values())),
        {name: percent(scores) for name, scores in groups["answer"].items()},
        {name: percent(scores) for name, scores in groups["question"].items()},
        {name: len(scores) for group in groups.values() for name, scores in group.items()},
        each,
    )


def soft_target(count: int) -> float:
    """The target of the loss for an answer that `count` of ten people gave: 0, 0.3, 0.6, 0.9, then 1.

    >>> [soft_target(n) for n in range(5)]
    [0.0, 0.3, 0.6, 0.9, 1.0]
    """
    return min(1.0, count * 3 / 10)


def _strip(answer: str) -> str:
    """The answer on one line, without white space around it."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


def _punctuation(text: str) -> str:
    """The text with each punctuation mark deleted or made a space, see `normalise`."""
    number = _COMMA_IN_NUMBER.search(text) is not None
    out = text
    for mark in _PUNCTUATION:
        deleted = number or mark + " " in text or " " + mark in text
        out = out.replace(mark, "" if deleted else " ")
    return _FULL_STOP.sub("", out, count=_FULL_STOPS)


def _lower(text: str) -> str:
    """Lower case letter by letter, as on Python 2: no letter becomes two, a final sigma is an ordinary one."""
    return text.lower() if text.isascii() else "".join("i" if c == "\u0130" else c.lower() for c in text)


def _words(text: str) -> str:
    """Lower case, digits for number words, no articles, contractions with their apostrophe."""
    words = (_NUMBERS.get(word, word) for word in _lower(text).split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)
