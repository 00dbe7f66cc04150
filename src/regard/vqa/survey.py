"""What a table of questions holds, and which pictures of it are held out: looked at before anything is started."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import _check
from regard._files import replacing
from regard._problem import Problem
from regard.vqa.own import TRAIN, listed_sizes, position_of, read_own, split_of_row
from regard.vqa.records import Record, Records, commonest
from regard.vqa.table import TABLE_COLUMNS, read_raw, read_rows

#: The names that a table may have for each split.
SPLIT_SPELLINGS = {
    TRAIN: ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


@dataclass(frozen=True)
class Survey:
    """A table of questions with its splits.

    `table`: its path.
    `columns`: the table's columns by regard's names of fields; `unused` are the others.
    `rows`: how many rows it has.
    `records`: the questions that can be used, their pictures named by the paths from the folder of the pictures.
    `splits`: the split of each question, by its id: "train", "val" or "test".
    `drawn`: whether the splits were drawn here, and not read from the table.
    `shared`: pictures that the table itself has in more than one split.
    `copies`: pictures with the same content as another one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(10):
    ...         _ = (Path(folder) / f"{i}.png").write_bytes(bytes([i]))
    ...     lines = [f"{i}.png;What is it?;{'cat' if i < 6 else 'dog'}" for i in range(10)]
    ...     _ = (Path(folder) / "mine.csv").write_text("\\n".join(["Image;Question;Label", *lines]))
    ...     survey = look_at(Path(folder) / "mine.csv")
    >>> {split: len(survey.split(split)) for split in ("train", "val", "test")}
    {'train': 7, 'val': 1, 'test': 2}
    """

    table: Path
    columns: dict[str, str]
    unused: tuple[str, ...]
    rows: int
    records: Records
    splits: dict[int | str, str]
    drawn: bool
    shared: tuple[str, ...]
    copies: int

    def split(self, name: str) -> Records:
        """The records of a split."""
        own = [record for record in self.records.records if self.splits[record.id] == name]
        pictures = {record.picture: self.records.pictures[record.picture] for record in own}
        return Records(name, own, pictures, masks=self.records.masks)

    @property
    def digest(self) -> str:
        """A short hash of all questions, answers and splits: equal for tables that say the same."""
        content = [[r.id, r.picture, r.question, r.answers, r.question_type, self.splits[r.id]] for r in self._sorted]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def _sorted(self) -> list[Record]:
        return sorted(self.records.records, key=lambda record: str(record.id))

    def sentences(self, most: int = 5) -> list[str]:
        """What was found, a sentence per line; `most` is how many of the commonest answers are named, default 5."""
        used = ", ".join(f"{field} ({column})" for field, column in self.columns.items())
        counts = Counter(commonest(record.answers) for record in self.records.records)
        common = [f"{answer} {100 * n / len(self.records):.0f} %" for answer, n in counts.most_common(most)]
        lines = [
            f"columns: {used}" + (f"; not used: {', '.join(self.unused)}" if self.unused else ""),
            f"{self.rows} rows: {len(self.records)} questions about {len(self.records.pictures)} pictures, "
            f"{len(counts)} different answers",
            f"most frequent answers: {', '.join(common)}" + (" ..." if len(counts) > most else ""),
        ]
        how = "drawn by picture" if self.drawn else "by the table's column"
        sizes = (
            f"{part.name} {len(part)} questions about {len(part.pictures)} pictures"
            for part in map(self.split, TABLE_SPLITS)
        )
        lines.append(f"splits, {how}: {'; '.join(sizes)}")
        if self.copies:
            lines.append(f"{self.copies} pictures are copies of others; a drawn split keeps copies together")
        if self.shared:
            lines.append(
                f"warning: {len(self.shared)} pictures are in more than one split, {self.shared[0]} for one, so that "
                "the accuracy on them is too high"
            )
        if self.records.skipped:
            lines.append(str(self.records.skipped))
        return lines

    def write(self, path: Path) -> None:
        """Write the questions with their splits as JSON lines, which every command reads."""
        with replacing(path) as beside:
            beside.write_text(
                "".join(f"{json.dumps(self._row(record), ensure_ascii=False)}\n" for record in self.records.records),
                encoding="utf-8",
            )

    def _row(self, record: Record) -> dict[str, Any]:
        row = {"id": record.id, "picture": record.picture, "question": record.question, "answers": list(record.answers)}
        others = {
            "answer_type": record.answer_type,
            "question_type": record.question_type,
            "regions": [str(self.records.masks[str(name)].resolve()) for name in record.regions or ()],
        }
        return row | {name: value for name, value in others.items() if value} | {"split": self.splits[record.id]}


TABLE_SPLITS = tuple(SPLIT_SPELLINGS)


def look_at(
    table: Path | str, pictures: Path | str | None = None, *, val: float = 0.1, test: float = 0.2, seed: int = 0
) -> Survey:
    """Read a table of questions and answers, and hold pictures out of training.

    A table with a column `split` keeps it (with the usual names, `SPLIT_SPELLINGS`). Else splits are drawn by picture:
    all questions about a picture, and about files with the same content, are in the same split.

    `table`: a CSV or JSONL file, see `regard.vqa.read_questions`.
    `pictures`: the folder that pictures are named from; default that of the table.
    `val`: the share of pictures for validation, if splits are drawn; default 0.1.
    `test`: the share of pictures for the test, if splits are drawn; default 0.2.
    `seed`: of the draw; default 0.
    """
    path = Path(table)
    if not path.is_file():
        raise Problem(f"{path} is not a file. Give a table of questions: CSV or JSONL.")
    root = Path(pictures) if pictures else path.parent
    if not root.is_dir():
        raise Problem(f"{root} is not a folder. Give the folder of the pictures.")
    columns = read_raw(path).names
    fields = {field: column for column, field in columns.items() if field in TABLE_COLUMNS}
    records = _with_paths(read_own(path, None, root).keep_answered(), root)
    if not len(records):
        why = f" {records.skipped}" if records.skipped else ""
        raise Problem(f"{path} has no question with a picture and an answer; columns: {', '.join(columns)}.{why}")
    unused = tuple(column for column, field in columns.items() if field not in TABLE_COLUMNS)
    rows = read_rows(path)
    group_of = _same_content(records.pictures)
    drawn = "split" not in fields
    if drawn:
        of_group = _draw(sorted(set(group_of.values())), val, test, seed)
        splits = {record.id: of_group[group_of[record.picture]] for record in records.records}
    else:
        splits = _read_splits(path, records, {row.get("id") or number: split_of_row(row) for number, row in rows})
        records = replace(records, records=[record for record in records.records if record.id in splits])
    parts: dict[str, set[str]] = {}
    for record in records.records:
        parts.setdefault(record.picture, set()).add(splits[record.id])
    shared = tuple(name for name, found in parts.items() if len(found) > 1)
    copies = len(group_of) - len(set(group_of.values()))
    return Survey(path, fields, unused, len(rows), records, splits, drawn, shared, copies)


def _with_paths(records: Records, root: Path) -> Records:
    """Records whose pictures are named by their path from the folder, so that one file has one name."""
    base = root.resolve()
    names: dict[str, str] = {}
    for name, path in records.pictures.items():
        real = path.resolve()
        names[name] = (real.relative_to(base) if real.is_relative_to(base) else real).as_posix()
    renamed = [replace(record, picture=names[record.picture]) for record in records.records]
    used = {record.picture for record in renamed}
    paths = {names[name]: path for name, path in records.pictures.items() if names[name] in used}
    return Records(records.name, renamed, paths, records.skipped, masks=records.masks)


def _same_content(pictures: dict[str, Path]) -> dict[str, str]:
    """For each picture the first, by name, of those with the same bytes; only files of equal size are read."""
    sizes = {name: path.stat().st_size for name, path in pictures.items()}
    often = Counter(sizes.values())
    first: dict[Any, str] = {}
    groups = {}
    for name in sorted(pictures):
        content: Any = name
        if often[sizes[name]] > 1:
            content = hashlib.sha256(pictures[name].read_bytes()).digest()
        groups[name] = first.setdefault(content, name)
    return groups


def _draw(names: list[str], val: float, test: float, seed: int) -> dict[str, str]:
    """The split of each name: by its place in an order that depends on names and seed alone; at least one each."""
    for share_name, share in (("val", val), ("test", test)):
        _check.number(share_name, share, above=0)
    if val + test >= 1:
        _check.complain("val + test", val + test, "less than 1", "Some pictures must be left to train on.")
    if len(names) < 3:
        raise Problem(f"{len(names)} pictures are too few to hold any out of training. There must be three, or more.")
    order = sorted(names, key=lambda name: position_of(name, seed))
    tested = min(max(1, round(test * len(names))), len(names) - 2)
    validated = min(max(1, round(val * len(names))), len(names) - tested - 1)
    kinds = ["test"] * tested + ["val"] * validated + [TRAIN] * (len(names) - tested - validated)
    return dict(zip(order, kinds, strict=True))


def _read_splits(path: Path, records: Records, written: dict[int | str, str]) -> dict[int | str, str]:
    """The split of each record by the table's column; rows without one are noted and left out."""
    standard = {name: split for split, names in SPLIT_SPELLINGS.items() for name in names}
    splits: dict[int | str, str] = {}
    unknown: Counter[str] = Counter()
    for record in records.records:
        name = written[record.id]
        if not name:
            records.skipped.add("line without a split", f"question {record.id} of {path.name}")
        elif name.lower() in standard:
            splits[record.id] = standard[name.lower()]
        else:
            unknown[name] += 1
    if unknown:
        raise Problem(
            f"{path} has splits that are not known: {listed_sizes(unknown)}. Name them {', '.join(TABLE_SPLITS)}."
        )
    missing = [split for split in TABLE_SPLITS if split not in splits.values()]
    if TRAIN in missing or len(missing) > 1:
        there = listed_sizes(Counter(splits.values())) or "none"
        raise Problem(
            f"{path} has no rows of the split {missing[0]}, only of {there}. Name rows of it, or take the column out: "
            "then pictures are held out here."
        )
    return splits
