"""What a command needs of its data, checked before it begins: splits that are there, answers, features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard._problem import Problem
from regard.vqa.feature_store import FeatureStore
from regard.vqa.own import TRAIN, NoSplit
from regard.vqa.read import another_split, existing, splits_in, without_answers
from regard.vqa.records import Records


@dataclass(frozen=True)
class Need:
    """A split whose answers are needed: `use` is what for, `option` the one of the command line that names another."""

    split: str
    use: str
    option: str | None = None


def check_splits(source: Path | str, needs: Iterable[Need]) -> None:
    """Raise a Problem that names the splits to choose from, if one is not there or has no answers.

    Of a folder in the form of VQA-v2 only the names of its files are looked at: that takes no longer for half a million
    questions. A table without a column `split` is training data.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train2014_questions", "train2014_annotations", "test2015_questions"):
    ...         _ = (Path(folder) / f"v2_{name}.json").write_text("{}")
    ...     try:
    ...         check_splits(folder, [Need("train", "training"), Need("test", "a comparison", "--test")])
    ...     except Problem as problem:
    ...         print(str(problem).replace(folder, "vqa"))
    test of vqa has no answers, and a comparison needs them. Splits with answers: train.
    """
    path = existing(source)
    known = splits_in(path)
    for need in needs:
        if need.split in known:
            if not known[need.split]:
                raise without_answers(need.split, source, need.use, need.option)
        elif known or need.split != TRAIN or path.is_dir():
            raise _missing(path, need, known)


def _missing(path: Path, need: Need, known: dict[str, bool]) -> NoSplit:
    """The Problem of a split that is not there."""
    named = f"{path} has no split {need.split!r}, which {need.use} needs"
    if path.is_file() and not known:
        remedy = f"it has no column split, and its rows are what is trained on. Hold pictures out: regard split {path}"
        return NoSplit(f"{named}: {remedy}")
    labelled = [name for name, answered in known.items() if answered]
    if not labelled:
        return NoSplit(f"{named}, and none with answers. Give a folder in the form of VQA-v2 with annotations.")
    choose = another_split(labelled, need.use, need.option)
    return NoSplit(f"{named}. Splits with answers: {', '.join(labelled)}.{choose}")


def check_features(store: FeatureStore, records: Records, source: Path | str) -> None:
    """Raise a Problem that says how to make them, if a store has no features of any picture of a split."""
    if not any(map(store.has, records.pictures)):
        raise Problem(
            f"{store.folder} has no features of {records.name}. Make them there with the same backbone: regard "
            f"features {source} --split {records.name}"
        )


def unwatched(splits: Mapping[str, bool] | None = None) -> Problem:
    """The Problem of a patience without validation; `splits` as `splits_in` returns them, default None, unknown."""
    other = next((name for name, answered in (splits or {}).items() if answered and name != TRAIN), None)
    remedy = f"Name one: --validation {other}" if other else "Name one with answers, or leave --patience out."
    return Problem(f"--patience watches the accuracy on a validation split, and none is named. {remedy}")
