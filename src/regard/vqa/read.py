"""Reading questions: VQA-v2 and other sets as they are distributed, and JSONL or CSV files of the user."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.pictures._sources import SUFFIXES
from regard.vqa.masks import Masks
from regard.vqa.own import TRAIN, NoSplit, own_splits, read_own
from regard.vqa.question_sets import question_set_in
from regard.vqa.records import Record, Records, Skipped


def read_questions(
    source: Path | str,
    split: str = TRAIN,
    pictures: Path | str | None = None,
    regions: Path | str | None = None,
) -> Records:
    """The records of a split: of a folder in the form of VQA-v2, or of one JSONL or CSV file.

    DAQUAR, VQA-RAD and easy-VQA are read from their folders as they are distributed (`regard.vqa.question_sets`).

    A folder has `*_{split}*_questions.json`, `*_{split}*_annotations.json` (not for test splits), and the pictures,
    `COCO_{subtype}_000000000009.jpg`, in it or below, or in `pictures`. A table has for each question `picture` (or
    `image`, `file`, `path`: a path from the table's folder or from `pictures`, or an absolute one), `question`, and
    `answer` (or `label`) or several `answers` (in CSV a JSON list, or with | between), in any case and order
    (`regard.vqa.table.TABLE_COLUMNS`); optionally `id`, `answer_type`, `question_type` and `split`: without that column
    the table is training data, and any split but "train" is refused; `hold_out` adds the column. A single answer counts
    as that of ten people, as the accuracy compares people with each other.

    What an answer rests on is in `regions` (or `mask`): one or several masks, paths from `regions`, from `pictures` or
    from the table's folder. With a folder `regions`, a question that names no mask has the one with the name of its
    picture. In annotations `regions` may also be numbers of objects, in pictures as those of the questions in the
    folder `objects`, or in `regions`.

    A faulty record is left out and noted in `skipped`; a faulty file is a Problem.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "1.png").write_bytes(b"")
    ...     line = {"picture": "1.png", "question": "What is it?", "answer": "a cat"}
    ...     _ = (Path(folder) / "mine.jsonl").write_text(json.dumps(line))
    ...     records = read_questions(f"{folder}/mine.jsonl")
    >>> len(records), records.records[0].question, len(records.records[0].answers)
    (1, 'What is it?', 10)
    """
    path = existing(source)
    if path.is_dir():
        if not _vqa_splits(path) and (known := question_set_in(path)) is not None:
            return known.read(split, Path(pictures) if pictures else None, Path(regions) if regions else None)
        return read_vqa(path, split, pictures, regions)
    return read_own(path, split, pictures, regions)


def existing(source: Path | str) -> Path:
    """The path of data; a Problem if there is nothing."""
    path = Path(source)
    if not path.is_dir() and not path.is_file():
        raise Problem(
            f"{source} is neither a folder nor a file. Give a folder in the form of VQA-v2, a JSONL or a CSV."
        )
    return path


def splits_in(source: Path | str) -> dict[str, bool]:
    """The names of the splits in data, and whether each has answers; empty for a file without a column `split`."""
    path = Path(source)
    if not path.is_dir():
        return own_splits(path)
    if known := _vqa_splits(path):
        return known
    found = question_set_in(path)
    return {} if found is None else dict.fromkeys(found.splits(), True)


def _vqa_splits(path: Path) -> dict[str, bool]:
    """The splits of a folder in the form of VQA-v2, and whether each has annotations."""
    name = re.compile(r"(?:.*_)?([^_]+?)(?:19|20)?\d*_(questions|annotations)\.json")
    kinds: dict[str, set[str]] = {}
    for file in sorted(path.rglob("*.json")):
        if match := name.fullmatch(file.name):
            kinds.setdefault(match[1], set()).add(match[2])
    return {split: "annotations" in files for split, files in kinds.items() if "questions" in files}


def check_answers(records: Records, source: Path | str, use: str, option: str | None = None) -> None:
    """Raise a Problem that names the splits with answers, if no record has any.

    `records`: of one split.
    `source`: what they were read from.
    `use`: what needs the answers.
    `option`: of the command line, that names another split; default None.
    """
    if not any(record.answers for record in records.records):
        raise without_answers(records.name, source, use, option)


def without_answers(split: str, source: Path | str, use: str, option: str | None = None) -> Problem:
    """The Problem of a split without answers; arguments as in `check_answers`."""
    labelled = [name for name, answered in splits_in(source).items() if answered]
    names = f"Splits with answers: {', '.join(labelled)}" if labelled else f"No split of {source} has any"
    choose = another_split(labelled, use, option)
    return Problem(f"{split} of {source} has no answers, and {use} needs them. {names}.{choose}")


def another_split(labelled: list[str], use: str, option: str | None) -> str:
    """A sentence that names another split of those with answers; what judges a model is not what it was trained on."""
    other = next((name for name in labelled if name != TRAIN or use == "training"), None)
    return f" Choose another: {option} {other}" if option and other else ""


def read_vqa(
    folder: Path, split: str, pictures: Path | str | None = None, regions: Path | str | None = None
) -> Records:
    """A split of VQA-v2, or of data in its form."""
    content = _json(_find_file(folder, split, "questions"), "questions")
    annotation_file = _find_file(folder, split, "annotations", needed=False)
    subtype = str(content.get("data_subtype", split))
    # The questions of test-dev are about the pictures of the test split.
    place = Path(pictures) if pictures else folder
    paths = {p.stem: p for p in _pictures_in(place, subtype.replace("test-dev", "test"))}
    skipped = Skipped()
    annotations = _annotations(annotation_file, content["questions"], skipped) if annotation_file else {}
    numbered = Path(regions) if regions else place / "objects"
    objects = {p.stem: p for p in _pictures_in(numbered, subtype)}
    folders = [Path(regions)] if regions else []
    masks = Masks(*folders, place, folder, by_name=bool(regions), objects=objects)
    records = []
    for q in content["questions"]:
        try:
            name, text, picture = _id_of(q), str(q["question"]), int(q["image_id"])
        except (KeyError, TypeError, ValueError):
            name = None
        if name is None:
            skipped.add("question that is not whole", f"in {split}: {json.dumps(q)[:100]}")
            continue
        stem = f"COCO_{subtype.replace('test-dev', 'test')}_{picture:012d}"
        if stem not in paths:
            skipped.add("question without a picture", f"question {name} of {split}: no picture {stem} in {place}")
        elif annotation_file and name not in annotations:
            sentence = f"question {name} of {split} has none in {annotation_file.name}"
            skipped.add("question without an annotation", sentence)
        else:
            annotation = annotations.get(name, {})
            known = masks.named(annotation.get("regions"), stem, f"question {name} of {split}", skipped)
            records.append(
                Record(
                    name,
                    stem,
                    text,
                    _answers_in(annotation),
                    str(annotation.get("answer_type") or "other"),
                    str(annotation.get("question_type") or ""),
                    known,
                )
            )
    return Records(split, records, paths, skipped, objects, masks.found)


def _annotations(file: Path, questions: list[Any], skipped: Skipped) -> dict[Any, dict[str, Any]]:
    """The annotations in a file by the id of their question; those that are not whole, or of no question, are noted."""
    ids = {_id_of(question) for question in questions}
    annotations: dict[Any, dict[str, Any]] = {}
    for annotation in _json(file, "annotations")["annotations"]:
        name = _id_of(annotation)
        if name is None:
            skipped.add("annotation that is not whole", f"in {file.name}: {json.dumps(annotation)[:100]}")
        elif name in ids:
            annotations[name] = annotation
        else:
            sentence = f"annotation of question {name} in {file.name}: there is no such question"
            skipped.add("annotation without a question", sentence)
    return annotations


def _id_of(entry: Any) -> Any:
    """The id of a question or an annotation; None if it is no record, or has none that can be looked up."""
    name = entry.get("question_id") if isinstance(entry, dict) else None
    return name if isinstance(name, int | str) else None


def _answers_in(annotation: dict[str, Any]) -> tuple[str, ...]:
    """The answers of an annotation: texts, or records with an "answer"; others are left out."""
    entries = annotation.get("answers")
    if not isinstance(entries, list):
        return ()
    texts = [one.get("answer") if isinstance(one, dict) else one for one in entries]
    return tuple(str(text) for text in texts if isinstance(text, str | int | float))


def write_results(path: Path | str, answers: Iterable[tuple[int | str, str]]) -> Path:
    """Write answers as the evaluation server takes them, [{"question_id", "answer"}]; return the path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_results(Path(folder) / "results.json", [(1, "yes")]).read_text()
    '[{"question_id": 1, "answer": "yes"}]'
    """
    path = Path(path)
    with replacing(path) as beside:
        beside.write_text(json.dumps([{"question_id": name, "answer": answer} for name, answer in answers]))
    return path


def _find_file(folder: Path, split: str, what: str, needed: bool = True) -> Path | None:
    """The file of "questions" or "annotations" of a split; NoSplit if there is none and it is needed."""
    name = re.compile(rf"(.*_)?{re.escape(split)}(19|20)?\d*_{what}\.json")
    files = sorted(p for p in folder.rglob(f"*{what}.json") if name.fullmatch(p.name))
    if not files and needed:
        known = ", ".join(splits_in(folder)) or "none"
        raise NoSplit(f"{folder} has no file *_{split}_{what}.json. Splits that it has: {known}.")
    return files[0] if files else None


def _json(path: Path | None, what: str) -> dict[str, Any]:
    """The content of a JSON file that has a list under the key `what`."""
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
            # Sorted: what is learned from them must not depend on the file system.
            yield from sorted(p for p in folder.glob(f"COCO_{subtype}_*") if p.suffix.lower() in SUFFIXES)
