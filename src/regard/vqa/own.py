"""User data: a JSONL or CSV file of questions, its column `split`, and pictures held out of training."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from regard import _check
from regard._files import replacing
from regard._problem import Problem
from regard.vqa.masks import Masks, picture_path
from regard.vqa.records import Record, Records, Skipped
from regard.vqa.table import NumberedRows, delimiter_of, is_table, read_rows

TRAIN = "train"


class NoSplit(Problem):
    """The data has no split of this name."""


def read_own(
    path: Path,
    split: str | None = TRAIN,
    pictures: Path | str | None = None,
    regions: Path | str | None = None,
) -> Records:
    """The rows of a `split` of a JSONL or CSV file, or all rows if it is None; default "train".

    A row's split is in the column `split`. A file without that column is training data: any other split is refused.
    `pictures` is the folder that pictures and masks are named from, default that of the file; `regions` one that
    masks are named from before: for a row that names none, the mask there with the picture's name.
    """
    folder = Path(pictures) if pictures else path.parent
    skipped, records, paths = Skipped(), [], {}
    ids: set[int | str] = set()
    masks = Masks(*([Path(regions)] if regions else []), folder, path.parent, by_name=bool(regions))
    rows = read_rows(path)
    sizes = _split_sizes(rows)
    _check_split(path, split, sizes)
    for number, row in rows:
        where = f"{path.name}, line {number}"
        if split is not None and sizes and split_of_row(row) != split:
            if not split_of_row(row):
                skipped.add("line without a split", where)
            continue
        if not row.get("picture") or "question" not in row:
            skipped.add("line without picture or question", where)
            continue
        name = str(row["picture"])
        picture = picture_path(name, folder, path.parent)
        if picture is None:
            skipped.add("question without a picture", f"{where}: no picture {folder / name}")
            continue
        if (question_id := row.get("id") or number) in ids:
            skipped.add("question with the id of another", f"{where}: {question_id}")
            continue
        ids.add(question_id)
        paths[name] = picture
        records.append(
            Record(
                question_id,
                name,
                str(row["question"]),
                _answers(row),
                str(row.get("answer_type") or "other"),
                str(row.get("question_type") or ""),
                masks.named(row.get("regions"), name, where, skipped),
                lenient=True,
            )
        )
    name = split if split is not None and sizes else path.stem
    return Records(name, records, paths, skipped, masks=masks.found)


def own_splits(path: Path) -> dict[str, bool]:
    """The names in the column `split` in order, and whether each has any answers; empty without the column."""
    splits: dict[str, bool] = {}
    for _, row in read_rows(path):
        if name := split_of_row(row):
            splits[name] = splits.get(name, False) or bool(_answers(row))
    return splits


def hold_out(
    source: Path | str, out: Path | str | None = None, *, val: float = 0.1, test: float = 0.1, seed: int = 0
) -> tuple[Path, dict[str, int]]:
    """Write a copy of a JSONL or CSV file with a column `split`; return its path, and the pictures in each split.

    *Pictures* are held out, with all questions about them, so that no picture is in two splits. The split of a picture
    depends on its name and the seed alone, so that rows added later do not change those of others. Columns that regard
    knows get its names for them.

    `source`: the file, without a column `split`.
    `out`: the copy, in the same folder, which pictures are named from; default NAME-split.
    `val`: the share of pictures for validation; default 0.1.
    `test`: the share of pictures for the test; default 0.1.
    `seed`: of the choice; default 0.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines = [json.dumps({"picture": f"{i}.png", "question": "What?", "answer": "cat"}) for i in range(50)]
    ...     _ = (Path(folder) / "mine.jsonl").write_text("\\n".join(lines))
    ...     path, pictures = hold_out(Path(folder) / "mine.jsonl")
    >>> path.name, pictures
    ('mine-split.jsonl', {'train': 44, 'val': 3, 'test': 3})
    """
    path = Path(source)
    for name, share in (("val", val), ("test", test)):
        _check.number(name, share, at_least=0)
    if val + test >= 1:
        _check.complain("val + test", val + test, "less than 1", "Some pictures must be left to train on.")
    target = Path(out) if out is not None else path.with_stem(f"{path.stem}-split")
    if not path.is_file():
        raise Problem(f"{source} is not a file. Give a JSONL or a CSV.")
    if target.resolve().parent != path.resolve().parent:
        raise Problem(f"{target} is in another folder than {path}, which pictures are named from. Write it beside.")
    if target.exists():
        raise Problem(f"{target} is there already. Name another file, or remove it.")
    rows = read_rows(path)
    if sizes := _split_sizes(rows):
        raise Problem(f"{path} has splits already: {listed_sizes(sizes)}. Use them, or take the column split out.")
    split_of: dict[str, str] = {}
    for _, row in rows:
        name = str(row.get("picture", ""))
        position = position_of(name, seed)
        split_of[name] = "test" if position < test else "val" if position < test + val else TRAIN
        row["split"] = split_of[name]
    pictures = {split: sum(s == split for s in split_of.values()) for split in (TRAIN, "val", "test")}
    for split, share in ((TRAIN, 1 - val - test), ("val", val), ("test", test)):
        if share and not pictures[split]:
            raise Problem(f"no picture of {len(split_of)} falls into {split}. Take a larger share, or another seed.")
    with replacing(target) as beside:
        _write_rows(beside, path, [row for _, row in rows])
    return target, {split: count for split, count in pictures.items() if count}


def position_of(name: str, seed: int) -> float:
    """A number from 0 to 1, a hash of a picture's name and the seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]) / 2**64


def _split_sizes(rows: NumberedRows) -> Counter[str]:
    return Counter(name for _, row in rows if (name := split_of_row(row)))


def split_of_row(row: dict[str, Any]) -> str:
    """The split of a row; "" if it has none."""
    name = row.get("split")
    return "" if name is None else str(name).strip()


def listed_sizes(sizes: Counter[str]) -> str:
    """Names with how many rows each has, in words."""
    return ", ".join(f"{name} ({count})" for name, count in sizes.items())


def _check_split(path: Path, split: str | None, sizes: Counter[str]) -> None:
    """Raise NoSplit unless the file has the split; without a column `split` it has only "train"."""
    if split is None or split in sizes or (not sizes and split == TRAIN):
        return
    if sizes:
        raise NoSplit(f"{path} has no split {split!r}, only {listed_sizes(sizes)}. Name one of these.")
    raise NoSplit(
        f"{path} has no split {split!r}: it has no column split, and its rows are what is trained on. "
        f"Hold pictures out: regard split {path}"
    )


def _answers(row: dict[str, Any]) -> tuple[str, ...]:
    """The answers of a row; a single one ten times."""
    value = row.get("answers", row.get("answer", []))
    answers = [value] if isinstance(value, (str, int, float)) else value or []
    answers = [str(answer) for answer in answers if str(answer).strip()]
    return tuple(answers * 10 if len(answers) == 1 else answers)


def _write_rows(target: Path, source: Path, rows: list[dict[str, Any]]) -> None:
    if not is_table(source):
        target.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, delimiter=delimiter_of(source))
        table.writeheader()
        for row in rows:
            table.writerow({k: json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for k, v in row.items()})
