"""Tables as people have them: CSV, TSV, JSON lines or a JSON list, with columns by their usual names."""

from __future__ import annotations

import csv
import io
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._problem import Problem

NumberedRows = list[tuple[int, dict[str, Any]]]  # the number of a line, and its fields by regard's names

#: Regard's name of each field, and the names that it may have in a table; case, spaces, - and _ do not count.
TABLE_COLUMNS: dict[str, tuple[str, ...]] = {
    "picture": ("picture", "image", "img", "photo", "file", "path", "filename", "filepath", "imagename", "imagepath",
                "imagefile", "picturename", "picturepath"),
    "question": ("question", "query", "questiontext"),
    "answers": ("answers", "labels"),
    "answer": ("answer", "label"),
    "split": ("split", "subset", "partition"),
    "id": ("id", "questionid", "qid"),
    "answer_type": ("answertype",),
    "question_type": ("questiontype",),
    "regions": ("regions", "mask", "masks"),
}  # fmt: skip
_NEEDED = ("picture", "question")
_DELIMITERS = ",;\t|"
_TABLES = (".csv", ".tsv", ".tab", ".txt")


def read_rows(path: Path) -> NumberedRows:
    """The rows of a table with their line numbers: fields by regard's names, and the columns it does not know.

    A CSV has commas, semicolons, tabs or bars between its columns, whichever its first line has; UTF-8, or UTF-16 with
    its mark. Several answers in a cell are a JSON list, or have bars between them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "mine.csv").write_text("Image;Question;Label\\na.jpg;What is it?;cat|kitten\\n")
    ...     read_rows(Path(folder) / "mine.csv")
    [(2, {'picture': 'a.jpg', 'question': 'What is it?', 'answers': ['cat', 'kitten']})]
    """
    return list(_csv(path) if is_table(path) else _json_records(path))


def is_table(path: Path) -> bool:
    """Whether a file is a table of text by its name; others hold JSON."""
    return path.suffix.lower() in _TABLES


def delimiter_of(path: Path) -> str:
    """What stands between the columns of a table: that of the characters , ; tab | which its first line has most."""
    return _delimiter(_text(path))


def _delimiter(text: str) -> str:
    header = re.sub(r'"[^"]*"', "", text.split("\n", 1)[0])
    return max(_DELIMITERS, key=header.count)


@dataclass(frozen=True)
class RawTable:
    """A table as it was written: its columns in order, regard's name for each that it knows, and the rows.

    Each row has the number of its line and its cells by column, unchanged.
    """

    columns: tuple[str, ...]
    names: dict[str, str]
    rows: NumberedRows

    def field(self, row: dict[str, Any], field: str) -> Any:
        """The content of a row under regard's name of a field; None if it has none."""
        return next((row[column] for column, name in self.names.items() if name == field and column in row), None)


def read_raw(path: Path) -> RawTable:
    """A table with its own columns and cells, to be written again with further columns.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "mine.csv").write_text("Image;Question;note\\na.jpg; What is it?;\\n")
    ...     table = read_raw(Path(folder) / "mine.csv")
    >>> table.rows, table.field(table.rows[0][1], "picture")
    ([(2, {'Image': 'a.jpg', 'Question': ' What is it?', 'note': ''})], 'a.jpg')
    """
    if is_table(path):
        columns, lines = _lines(path)
        rows = [(number, dict(zip(columns, cells, strict=False))) for number, cells in lines if any(cells)]
        return RawTable(tuple(columns), _names(path, columns), rows)
    rows = list(_numbered_records(path))
    # Records may differ in the names of their fields.
    names = {column: name for _, row in rows for column, name in _names(path, list(row), needed=()).items()}
    if not set(_NEEDED) <= set(names.values()):
        _names(path, list(names))  # says what is missing
    return RawTable(tuple(names), names, rows)


def _lines(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The columns of a CSV, and its lines with their numbers."""
    text = _text(path)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    header = [column.strip() for column in next(lines, [])]
    return header, ((lines.line_num, cells) for cells in lines)


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    header, lines = _lines(path)
    names = _names(path, header)
    for number, cells in lines:
        row: dict[str, Any] = {
            names[column]: cell.strip() for column, cell in zip(header, cells, strict=False) if cell.strip()
        }
        if not row:
            continue
        row.setdefault("question", "")  # an empty cell is an empty question
        cell = row.get("answers", row.get("answer", ""))
        if several := _several(cell):
            row = {name: value for name, value in row.items() if name != "answer"} | {"answers": several}
        if "regions" in row:
            row["regions"] = _several(row["regions"]) or row["regions"]
        yield number, _with_slashes(row)


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, record in _numbered_records(path):
        names = _names(path, list(record), needed=())
        yield number, _with_slashes({names[key]: value for key, value in record.items()})


def _numbered_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    text = _text(path)
    if text.lstrip().startswith("["):
        try:
            records = json.loads(text)
        except ValueError as error:
            raise Problem(f"{path} is not a JSON list ({error}). Or write one record on each line.") from error
        numbered: Iterable[tuple[int, Any]] = enumerate(records, start=1)
    else:
        numbered = _json_lines(path, text)
    for number, record in numbered:
        if not isinstance(record, dict):
            raise Problem(f'{path}, line {number} is not a record. Write {{"picture": ..., "question": ...}}.')
        yield number, record


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise Problem(f"{path}, line {number} is not JSON ({error}). Write one record on each line.") from error


def _names(path: Path, columns: list[str], needed: tuple[str, ...] = _NEEDED) -> dict[str, str]:
    """Regard's name for each column, or its own; a Problem if one is missing, or two mean the same."""
    names = {column: column for column in columns}
    listed = ", ".join(filter(None, columns)) or "none"
    for field, known in TABLE_COLUMNS.items():
        matches = [column for column in columns if re.sub(r"[\s_-]", "", column).lower() in known]
        exact = [column for column in matches if column == field]
        if len(matches) > 1 and len(exact) != 1:
            raise Problem(f"{path} has several columns for the {field}: {', '.join(matches)}. Keep one of them.")
        if not matches and field in needed:
            raise Problem(
                f"{path} has no column for the {field}; its columns are: {listed}. "
                f"Name one of them {field}, or {', '.join(known[1:4])}."
            )
        for column in exact or matches:
            names[column] = field
    return names


def _with_slashes(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose picture is a normal path with slashes, so that one picture has one name."""
    if isinstance(row.get("picture"), str):
        row["picture"] = picture_name(row["picture"])
    return row


def picture_name(text: str) -> str:
    """The name of a picture as a normal path with slashes.

    >>> picture_name(" photos\\\\./cat.jpg ")
    'photos/cat.jpg'
    """
    return posixpath.normpath(text.strip().replace("\\", "/"))


def _several(text: str) -> list[str] | None:
    """The answers or masks in one cell of a CSV: a JSON list, or with bars between; None if it is a single one."""
    if text.startswith("["):
        try:
            return [str(answer) for answer in json.loads(text)]
        except ValueError:
            return None
    return [answer.strip() for answer in text.split("|") if answer.strip()] if "|" in text else None


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read as text ({error}). Save it as UTF-8.") from error
