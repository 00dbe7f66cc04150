"""Samples that a run carries: some held-out pictures with their questions and answers, to look at the model by.

samples/samples.json    the pictures in order, each with its records
samples/0.jpg, ...      the pictures, shrunk
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from regard._files import replacing
from regard._problem import Problem
from regard.pictures import read
from regard.vqa.folder import AnsweringFolder
from regard.vqa.records import Record, Records

SAMPLE_PICTURES, SAMPLE_QUESTIONS, SAMPLE_SIDE = (
    12,
    6,
    640,
)  # at most: pictures, questions per picture, pixels of the longer side


@dataclass(frozen=True)
class Sample:
    """A held-out picture: its name in the data, its copy in the run's folder, and the records about it."""

    name: str
    picture: Path
    records: tuple[Record, ...]


def keep_samples(
    folder: AnsweringFolder, records: Records, *, pictures: int = SAMPLE_PICTURES, seed: int = 0
) -> list[Sample]:
    """Copy some pictures of held-out records into a run, with their questions, in place of earlier ones.

    Pictures are chosen at random, but in turn from each question type and answer, so that a few show them all. They
    are stored as JPEG with at most 640 pixels on the longer side: 12 of them take about one megabyte. Pictures that
    cannot be read are passed over.

    `folder`: of the run.
    `records`: that the model was not trained on.
    `pictures`: how many at most; default 12.
    `seed`: of the choice; default 0.
    """
    from PIL import Image

    target = folder.samples
    beside = target.with_name(f".{target.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    entries: list[dict[str, object]] = []
    for name in _varied(records.records, seed):
        if len(entries) == pictures:
            break
        try:
            pixels = read(records.pictures[name])
        except (Problem, KeyError):
            continue
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        image.thumbnail((SAMPLE_SIDE, SAMPLE_SIDE))
        file = f"{len(entries)}.jpg"
        image.save(beside / file, quality=88)
        own = [asdict(record) for record in records.records if record.picture == name][:SAMPLE_QUESTIONS]
        entries.append({"name": name, "file": file, "records": own})
    with replacing(beside / _INDEX) as index:
        index.write_text(
            json.dumps({"split": records.name, "samples": entries}, indent=1, ensure_ascii=False),
            "utf-8",
            "backslashreplace",
        )
    shutil.rmtree(target, ignore_errors=True)
    beside.replace(target)
    return read_samples(folder)


def read_samples(folder: AnsweringFolder) -> list[Sample]:
    """The samples of a run; none if it carries none.

    >>> read_samples(AnsweringFolder(Path("nowhere")))
    []
    """
    place = folder.samples
    try:
        content = json.loads((place / _INDEX).read_text(encoding="utf-8"))
        return [
            Sample(entry["name"], place / Path(entry["file"]).name, tuple(map(_record, entry["records"])))
            for entry in content["samples"]
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{place / _INDEX} cannot be read ({error}). Remove the folder; a training writes it.") from error


_INDEX = "samples.json"


def _varied(records: list[Record], seed: int) -> list[str]:
    """Names of pictures: in turn the next of each question type and first answer, each group in random order."""
    groups: dict[tuple[str, str], list[str]] = {}
    for record in records:
        group = (record.question_type, record.answers[0] if record.answers else "")
        groups.setdefault(group, []).append(record.picture)
    generator = random.Random(seed)
    for names in groups.values():
        generator.shuffle(names)
    order = list(groups)
    generator.shuffle(order)
    longest = max(map(len, groups.values()), default=0)
    turns = (groups[group][turn] for turn in range(longest) for group in order if turn < len(groups[group]))
    return list(dict.fromkeys(turns))


def _record(written: dict[str, object]) -> Record:
    content = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
    return Record(**content)  # type: ignore[arg-type]
