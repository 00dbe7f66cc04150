"""Sets of questions as their authors distribute them, recognised by the names of their files.

    DAQUAR     qa.894.raw.train.txt, qa.894.raw.test.txt (or qa.37...): a question, then its answers, line by line; or
               one file of all pairs (all_qa_pairs.txt, qa.894.raw.txt) beside lists of the pictures of each split;
               pictures image3.png
    VQA-RAD    trainset.json and testset.json, or the one file of its authors, whose phrase_type names the test set:
               records with image_name, question, answer, answer_type, question_type
    easy-VQA   train/questions.json and test/questions.json: [question, answer, number of the picture]; pictures
               train/images/0.png

Nothing is downloaded: the folder is the user's.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard._problem import Problem
from regard.pictures._sources import SUFFIXES
from regard.vqa.masks import Masks
from regard.vqa.named_objects import NamedObjects
from regard.vqa.own import NoSplit
from regard.vqa.records import Record, Records, Skipped

_PEOPLE = 10  # that a single answer counts for: the accuracy compares people with each other
_IN_THE_PICTURE = re.compile(r"\s*\b(?:in|on|of|from|at)?\s*(?:the\s+)?(image\d+)\s*\??\s*$", re.IGNORECASE)


class Asked(NamedTuple):
    """A question of a set: where it stands, its picture by name, its text, its answer, and their types."""

    where: str
    picture: str
    question: str
    answer: str
    answer_type: str = "other"
    question_type: str = ""


@dataclass(frozen=True)
class QuestionSet(ABC):
    """The questions of a folder; `found` are the files that it was recognised by."""

    folder: Path
    found: tuple[Path, ...]

    @classmethod
    @abstractmethod
    def in_folder(cls, folder: Path) -> QuestionSet | None:
        """The set in a folder; None if it has another, or none."""

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of its splits; all have answers."""

    @abstractmethod
    def asked(self, split: str, skipped: Skipped) -> Iterator[Asked]:
        """The questions of a split; what is not whole is noted."""

    def named_objects(self, regions: Path) -> NamedObjects | None:
        """Masks of classes of objects in a folder, for regions by the words of a question; None: masks of pictures."""
        return None

    def read(self, split: str, pictures: Path | None = None, regions: Path | None = None) -> Records:
        """The records of a split; arguments as in `read_questions`. NoSplit if there is none of this name."""
        if split not in self.splits():
            raise NoSplit(f"{self.folder} has no split {split}. Splits that it has: {', '.join(self.splits())}.")
        place, skipped = pictures or self.folder, Skipped()
        files = _pictures_below(place)
        masks = Masks(*([regions] if regions else []), place, self.folder, by_name=bool(regions))
        classes = self.named_objects(regions) if regions else None
        records, paths = [], {}
        for number, one in enumerate(self.asked(split, skipped)):
            path = files.get(one.picture)
            if path is None:
                skipped.add("question without a picture", f"{one.where}: no picture {one.picture} in {place}")
                continue
            paths[one.picture] = path
            if classes is None:
                known = masks.named(None, one.picture, one.where, skipped)
            else:
                known = classes.named(one.question, one.picture, skipped)
            answers = (one.answer,) * _PEOPLE
            kinds = (one.answer_type, one.question_type)
            records.append(Record(f"{split} {number}", one.picture, one.question, answers, *kinds, known, lenient=True))
        if classes is not None:
            return Records(split, records, paths, skipped, classes.files, shown=classes.window(paths))
        return Records(split, records, paths, skipped, masks=masks.found)


class Daquar(QuestionSet):
    """DAQUAR: people's questions about indoor photographs of NYU Depth V2, as text.

    A question ends with the name of its picture ("... in the image3 ?"), which is taken off. Several answers ("knife,
    fork") are one, as in the accuracy of its authors. Regions may be the masks of nyuv2-meta-data: then they are the
    objects that a question names (`regard.vqa.named_objects`).
    """

    @classmethod
    def in_folder(cls, folder: Path) -> Daquar | None:
        """See `QuestionSet`; of several sizes the largest."""
        for objects in ("894", "37"):
            files = [_below(folder, f"qa.{objects}.raw.{split}.txt") for split in ("train", "test")]
            if any(files):
                return cls(folder, tuple(file for file in files if file))
        whole = _below(folder, "all_qa_pairs.txt") or _below(folder, "qa.894.raw.txt")
        lists = [cls._list_of(folder, split) for split in ("train", "test")] if whole else []
        return cls(folder, (whole, *(file for file in lists if file))) if whole and any(lists) else None

    @staticmethod
    def _list_of(folder: Path, split: str) -> Path | None:
        """The list of the pictures of a split."""
        return _below(folder, f"{split}_images_list.txt") or _below(folder, f"{split}.txt")

    def named_objects(self, regions: Path) -> NamedObjects | None:
        """See `QuestionSet`."""
        return NamedObjects.in_folder(regions)

    def splits(self) -> tuple[str, ...]:
        """Those that have a file of questions, or a list of pictures."""
        names = [file.name for file in self.found]
        return tuple(split for split in ("train", "test") if any(split in name for name in names))

    def asked(self, split: str, skipped: Skipped) -> Iterator[Asked]:
        """See `QuestionSet`."""
        own = next((file for file in self.found if file.name.endswith(f".{split}.txt")), None)
        chosen = None
        if own is None:
            own, listed = self.found[0], next(file for file in self.found if file.name.startswith(split))
            chosen = {line.strip() for line in _text_of(listed).splitlines()}
        lines = [line.strip() for line in _text_of(own).splitlines() if line.strip()]
        for number in range(0, len(lines) - 1, 2):
            where, question = f"{own.name}, question {number // 2 + 1}", lines[number]
            named = _IN_THE_PICTURE.search(question)
            if named is None:
                skipped.add("question that names no picture", f"{where}: {question[:80]}")
            elif chosen is None or named[1].lower() in chosen:
                answer = lines[number + 1]
                kind = "number" if answer.isdecimal() else "other"
                yield Asked(where, named[1].lower(), question[: named.start()].strip() + "?", answer, kind)


class VqaRad(QuestionSet):
    """VQA-RAD: clinicians' questions about radiological pictures, closed (yes, no, one of two) and open."""

    @classmethod
    def in_folder(cls, folder: Path) -> VqaRad | None:
        """See `QuestionSet`."""
        files = [_below(folder, name) for name in ("trainset.json", "testset.json")]
        whole = next((file for file in sorted(folder.glob("*.json")) if "rad" in file.stem.lower()), None)
        found = tuple(file for file in files if file) or ((whole,) if whole else ())
        if not found:
            return None
        first = _first_entry(found[0])
        return cls(folder, found) if isinstance(first, dict) and "image_name" in first else None

    def splits(self) -> tuple[str, ...]:
        """Those that have a file; of the one file of its authors both."""
        split_of = {"trainset": "train", "testset": "test"}
        named = tuple(split_of[file.stem] for file in self.found if file.stem in split_of)
        return named or ("train", "test")

    def asked(self, split: str, skipped: Skipped) -> Iterator[Asked]:
        """See `QuestionSet`."""
        own = next((file for file in self.found if file.stem == f"{split}set"), None)
        file = own or self.found[0]
        for number, entry in enumerate(_list(file)):
            where = f"{file.name}, entry {number + 1}"
            if not isinstance(entry, dict) or not {"image_name", "question", "answer"} <= entry.keys():
                skipped.add("question that is not whole", f"{where}: {json.dumps(entry)[:80]}")
                continue
            tested = str(entry.get("phrase_type") or "").startswith("test")
            if own is None and tested != (split == "test"):
                continue
            kind = str(entry.get("answer_type") or "other").strip().lower()
            about = str(entry.get("question_type") or "").strip().lower()
            picture = Path(str(entry["image_name"])).stem
            yield Asked(where, picture, str(entry["question"]).strip(), str(entry["answer"]).strip(), kind, about)


class EasyVqa(QuestionSet):
    """easy-VQA: questions about one drawn shape."""

    @classmethod
    def in_folder(cls, folder: Path) -> EasyVqa | None:
        """See `QuestionSet`."""
        for place in (folder, folder / "data"):
            found = tuple(file for split in ("train", "test") if (file := place / split / "questions.json").is_file())
            if found and isinstance(_first_entry(found[0]), list):
                return cls(folder, found)
        return None

    def splits(self) -> tuple[str, ...]:
        """Those that have a file."""
        return tuple(file.parent.name for file in self.found)

    def asked(self, split: str, skipped: Skipped) -> Iterator[Asked]:
        """See `QuestionSet`."""
        file = next(file for file in self.found if file.parent.name == split)
        for number, entry in enumerate(_list(file)):
            where = f"{split}/{file.name}, entry {number + 1}"
            if not isinstance(entry, list) or len(entry) != 3:
                skipped.add("question that is not whole", f"{where}: {json.dumps(entry)[:80]}")
                continue
            question, answer, picture = map(str, entry)
            kind = "yes/no" if answer in ("yes", "no") else "other"
            yield Asked(where, f"{split}/{picture}", question, answer, kind)


def question_set_in(folder: Path) -> QuestionSet | None:
    """The set that a folder has, by the names of its files; None if it has none of those that are known."""
    for kind in (Daquar, VqaRad, EasyVqa):
        if (found := kind.in_folder(folder)) is not None:
            return found
    return None


def _pictures_below(place: Path) -> dict[str, Path]:
    """All pictures of a folder, by their names without an ending; under train/images and test/images also with those.

    A name that occurs twice is that of the first in order, so that it does not depend on the file system.
    """
    files: dict[str, Path] = {}
    for path in sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES):
        parts = path.relative_to(place).parts
        for split in ("train", "test"):
            if split in parts[:-1]:
                files.setdefault(f"{split}/{path.stem}", path)
        files.setdefault(path.stem, path)
    return files


def _below(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder or below it; None if there is none."""
    return next(iter(sorted(folder.rglob(name))), None)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Problem(f"{file} cannot be read ({error.strerror}). Check the file.") from error


def _first_entry(file: Path) -> Any:
    """The first entry of the list in a JSON file; None if it has none, or cannot be read: then it is something else."""
    try:
        return next(iter(_list(file)), None)
    except Problem:
        return None


def _list(file: Path) -> list[Any]:
    """The list in a JSON file; a Problem if it has something else."""
    try:
        content = json.loads(_text_of(file))
    except ValueError as error:
        raise Problem(f"{file} cannot be read as JSON ({error}). Download it again.") from error
    if not isinstance(content, list):
        raise Problem(f"{file} has no list of questions. Give the file as it is distributed.")
    return content
