"""Reading questions: VQA-v2 as it is distributed, and plain JSONL or CSV files of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.vqa.own import TRAIN, NoSplit, own_splits, read_own
from regard.vqa.records import Record, Records, Skipped

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def read_questions(source: Path | str, split: str = TRAIN, pictures: Path | str | None = None) -> Records:
    """The records of a split: of a folder in the form of VQA-v2, or of one JSONL or CSV file.

    A folder has `*_{split}*_questions.json`, `*_{split}*_annotations.json` (not for test splits), and the pictures,
    `COCO_{subtype}_000000000009.jpg`, in it or below, or in `pictures`. A JSONL or CSV file has for each question
    `picture` (a path, from the file's folder), `question`, and `answer` or `answers` (a list; in CSV with | between);
    also `id`, `answer_type`, `question_type` if wanted, and `split`: without that column the file is one set to train
    on, and another split than "train" is refused; `hold_out` adds the column. A single answer counts as that of ten
    people: the accuracy compares people with each other.

    What is wrong with single records is noted in `skipped`, naming the record; what is wrong with a file is a Problem.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "1.png").write_bytes(b"")
    ...     line = {"picture": "1.png", "question": "What is it?", "answer": "a cat"}
    ...     _ = (Path(folder) / "mine.jsonl").write_text(json.dumps(line))
    ...     records = read_questions(f"{folder}/mine.jsonl")
    >>> len(records), records.records[0].question, len(records.records[0].answers)
    (1, 'What is it?', 10)
    """
    path = Path(source)
    if path.is_dir():
        return read_vqa(path, split, pictures)
    if not path.is_file():
        raise Problem(
            f"{source} is neither a folder nor a file. Give a folder in the form of VQA-v2, a JSONL or a CSV."
        )
    return read_own(path, split, pictures)


def splits_in(source: Path | str) -> dict[str, bool]:
    """The names of the splits that data have, and whether each has answers; none if a file has no column `split`."""
    path = Path(source)
    if not path.is_dir():
        return own_splits(path)
    name = re.compile(r"(?:.*_)?([^_]+?)(?:19|20)?\d*_(questions|annotations)\.json")
    found: dict[str, set[str]] = {}
    for file in sorted(path.rglob("*.json")):
        if match := name.fullmatch(file.name):
            found.setdefault(match[1], set()).add(match[2])
    return {split: "annotations" in files for split, files in found.items() if "questions" in files}


def check_answers(records: Records, source: Path | str, use: str) -> None:
    """Refuse records without any answer for a `use` that needs them, naming the splits that have some."""
    if any(record.answers for record in records.records):
        return
    known = [name for name, answered in splits_in(source).items() if answered]
    names = f"Splits with answers: {', '.join(known)}" if known else f"No split of {source} has any"
    raise Problem(f"{records.name} of {source} has no answers, and {use} needs them. {names}.")


def read_vqa(folder: Path, split: str, pictures: Path | str | None = None) -> Records:
    """A split of VQA-v2, or of anything in its form."""
    asked = _json(_find_file(folder, split, "questions"), "questions")
    annotated = _find_file(folder, split, "annotations", needed=False)
    subtype = str(asked.get("data_subtype", split))
    # Test-dev asks about the pictures of the test split.
    place = Path(pictures) if pictures else folder
    found = {p.stem: p for p in _pictures_in(place, subtype.replace("test-dev", "test"))}
    skipped = Skipped()
    told: dict[Any, dict[str, Any]] = {}
    if annotated:
        questions = {q.get("question_id") for q in asked["questions"]}
        for annotation in _json(annotated, "annotations")["annotations"]:
            name = annotation.get("question_id")
            if name in questions:
                told[name] = annotation
            else:
                sentence = f"annotation of question {name} in {annotated.name}: there is no such question"
                skipped.add("annotation without a question", sentence)
    records = []
    for q in asked["questions"]:
        try:
            name, text, picture = q["question_id"], str(q["question"]), int(q["image_id"])
        except (KeyError, TypeError, ValueError):
            skipped.add("question that is not whole", f"in {split}: {json.dumps(q)[:100]}")
            continue
        stem = f"COCO_{subtype.replace('test-dev', 'test')}_{picture:012d}"
        if stem not in found:
            skipped.add("question without a picture", f"question {name} of {split}: no picture {stem} in {place}")
        elif annotated and name not in told:
            skipped.add("question without an annotation", f"question {name} of {split} has none in {annotated.name}")
        else:
            records.append(_record(name, stem, text, told.get(name)))
    objects = {p.stem: p for p in _pictures_in(place / "objects", subtype)}
    return Records(split, records, found, skipped, objects)


def write_results(path: Path | str, answers: Iterable[tuple[int | str, str]]) -> Path:
    """The file that the evaluation server takes: [{"question_id", "answer"}].

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_results(Path(folder) / "results.json", [(1, "yes")]).read_text()
    '[{"question_id": 1, "answer": "yes"}]'
    """
    path = Path(path)
    with replacing(path) as beside:
        beside.write_text(json.dumps([{"question_id": name, "answer": answer} for name, answer in answers]))
    return path


def _record(name: Any, picture: str, text: str, told: dict[str, Any] | None) -> Record:
    if told is None:
        return Record(name, picture, text)
    given = told.get("answers") or []
    answers = tuple(str(a["answer"]) if isinstance(a, dict) else str(a) for a in given)
    regions = tuple(told["regions"]) if "regions" in told else None
    kind, question = str(told.get("answer_type", "other")), str(told.get("question_type", ""))
    return Record(name, picture, text, answers, kind, question, regions)


def _find_file(folder: Path, split: str, what: str, needed: bool = True) -> Path | None:
    name = re.compile(rf"(.*_)?{re.escape(split)}(19|20)?\d*_{what}\.json")
    found = sorted(p for p in folder.rglob(f"*{what}.json") if name.fullmatch(p.name))
    if not found and needed:
        known = ", ".join(splits_in(folder)) or "none"
        raise NoSplit(f"{folder} has no file *_{split}_{what}.json. Splits that it has: {known}.")
    return found[0] if found else None


def _json(path: Path | None, what: str) -> dict[str, Any]:
    assert path is not None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Problem(f"{path} cannot be read as JSON ({error}). Download it again.") from error
    if not isinstance(content, dict) or not isinstance(content.get(what), list):
        raise Problem(f'{path} has no list "{what}". Give a file as VQA-v2 has it.')
    return content


def _pictures_in(place: Path, subtype: str) -> Iterator[Path]:
    """Pictures named for the subtype in `place` or in its folders."""
    for folder in (place, place / subtype, place / "images" / subtype, place / "images"):
        if folder.is_dir():
            # In the order of their names: what is learned from them is not to depend on the file system.
            yield from sorted(p for p in folder.glob(f"COCO_{subtype}_*") if p.suffix.lower() in _SUFFIXES)
