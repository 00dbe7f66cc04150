"""Many questions in a table, answered: the table again, with the answers in further columns."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._files import replacing
from regard._problem import Problem
from regard.pictures import read
from regard.vqa.grids import grids
from regard.vqa.kinds import Kind, parse
from regard.vqa.masks import picture_path
from regard.vqa.predict import Predictor
from regard.vqa.table import RawTable, delimiter_of, is_table, picture_name, read_raw
from regard.vqa.words import tokens

ADDED = ("answer", "score", "unknown_words", "problem")
_ASKED_AT_ONCE = 128  # questions about one picture in a forward pass


@dataclass(frozen=True)
class AnsweredTable:
    """A table that was answered: its file, how many rows it has, how many have an answer, and why others have none.

    >>> print(AnsweredTable(Path("answers.csv"), 10, 9, Counter({"no such picture": 1})))
    answers.csv: 9 of 10 questions answered
      1 without an answer: no such picture
    """

    path: Path
    rows: int
    answered: int
    problems: Counter[str]

    def __str__(self) -> str:
        lines = [f"{self.path.as_posix()}: {self.answered} of {self.rows} questions answered"]
        lines += [f"  {count} without an answer: {why}" for why, count in self.problems.most_common(5)]
        return "\n".join(lines)


@dataclass
class _Row:
    """A row of the table, what is asked about which picture, and what came of it."""

    cells: dict[str, Any]
    question: str
    picture: Path | None
    answer: str = ""
    score: float | None = None
    unknown: tuple[str, ...] = ()
    problem: str = ""
    reason: str = ""  # the problem without what is special to this row, to count by


def check_tables(table: Path, out: Path) -> None:
    """Raise a Problem unless the answers to a table can be written to `out`: another file, of the same format."""
    if not table.is_file():
        raise Problem(f"{table} is not a file. Give a CSV or a JSONL with a picture and a question in each row.")
    if out.exists() and (out.is_dir() or out.samefile(table)):
        why = "a folder" if out.is_dir() else "the table of questions itself"
        raise Problem(f"{out} is {why}. Name another file for the answers: --out answers{table.suffix}")
    if is_table(out) != is_table(table):
        raise Problem(
            f"{out} has another format than {table.name}. Name a file of the same: --out answers{table.suffix}"
        )


def answer_table(
    predictor: Predictor,
    table: Path | str,
    out: Path | str,
    *,
    pictures: Path | str | None = None,
    attention: str | Kind | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AnsweredTable:
    """Answer every row of a table, and write its rows with answers; each picture goes through the backbone once.

    `predictor`: the model.
    `table`: a CSV, JSONL or JSON list with pictures and questions, as `read_questions` takes it, without answers.
    `out`: a file of the same format, with the table's columns and `answer`, `score` (0 to 1), `unknown_words` (those
        that the model does not know) and `problem`, why a row has no answer; a column of that name in the table keeps
        it, and the new one is called `model_answer` and so on. A CSV has the table's delimiter. It is written whole or
        not at all, and never over the table.
    `pictures`: the folder that pictures are named from; default None, that of the table.
    `attention`: the output attention; default that of the training.
    `progress`: called with the rows done and to do; default None.
    """
    table, out = Path(table), Path(out)
    check_tables(table, out)
    kind = parse(attention or predictor.attention)
    raw = read_raw(table)
    rows = [_row(raw, cells, predictor, Path(pictures) if pictures else table.parent, table) for _, cells in raw.rows]
    groups: dict[Path, list[_Row]] = {}
    for row in rows:
        if row.picture is not None:
            groups.setdefault(row.picture, []).append(row)
    done = len(rows) - sum(map(len, groups.values()))
    for path, group in groups.items():
        _answer_group(predictor, path, group, kind)
        done += len(group)
        if progress:
            progress(done, len(rows))
    with replacing(out) as beside:
        _write(beside, table, raw.columns, rows)
    reasons = Counter(row.reason for row in rows if row.problem)
    return AnsweredTable(out, len(rows), len(rows) - reasons.total(), reasons)


def _row(raw: RawTable, cells: dict[str, Any], predictor: Predictor, folder: Path, table: Path) -> _Row:
    """A row with its picture, or with the reason why it cannot be asked."""
    name, question = raw.field(cells, "picture"), raw.field(cells, "question")
    row = _Row(cells, "" if question is None else str(question), None)
    row.unknown = tuple(predictor.words.unknown(row.question))
    read_words = tokens(row.question)[: predictor.model.settings.tokens]
    if not read_words:
        row.problem = row.reason = "the question is empty"
    elif not any(word in predictor.words.numbers for word in read_words):
        row.problem = row.reason = "the model knows no word of the question"
    elif name is None or not str(name).strip():
        row.problem = row.reason = "there is no picture in the row"
    else:
        row.picture = picture_path(picture_name(str(name)), folder, table.parent)
        if row.picture is None:
            row.problem, row.reason = (
                f"no picture {picture_name(str(name))} in {folder}",
                f"no such picture in {folder}",
            )
    return row


@torch.no_grad()
def _answer_group(predictor: Predictor, path: Path, rows: Sequence[_Row], kind: Kind) -> None:
    """Answer all questions about one picture."""
    try:
        picture = read(path)
    except Problem as problem:
        for row in rows:
            row.problem, row.reason = str(problem), "the picture cannot be read"
        return
    prepared = predictor.backbone.prepare(picture[None])
    grid = grids(predictor.backbone, prepared, predictor.stages).half().float()  # rounded as stored features are
    for start in range(0, len(rows), _ASKED_AT_ONCE):
        part = rows[start : start + _ASKED_AT_ONCE]
        for row, (score, number) in zip(part, _best_answers(predictor, grid, part, kind), strict=True):
            row.answer, row.score = predictor.answers.spelled[number], score


def _best_answers(predictor: Predictor, grid: Tensor, rows: Sequence[_Row], kind: Kind) -> list[tuple[float, int]]:
    """The score and the number of the best answer to each question."""
    length = predictor.model.settings.tokens
    words = torch.stack([predictor.words.encode(row.question, length) for row in rows])
    scores, _ = predictor.model(grid, words, torch.zeros(len(rows), dtype=torch.int64), attention=kind)
    best = predictor.model.probabilities(scores).max(-1)
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))


def _write(target: Path, source: Path, columns: Sequence[str], rows: Sequence[_Row]) -> None:
    taken = {column.lower() for column in columns}
    names = {name: f"model_{name}" if name in taken else name for name in ADDED}
    lines = [row.cells | {names[name]: value for name, value in _results(row).items()} for row in rows]
    if not is_table(source):
        as_list = source.read_bytes().lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        texts = [json.dumps(line, ensure_ascii=False) for line in lines]
        text = "[\n" + ",\n".join(texts) + "\n]\n" if as_list else "".join(f"{line}\n" for line in texts)
        target.write_text(text, encoding="utf-8")
        return
    # A mark at the beginning tells spreadsheets that it is UTF-8: it is there again if the table had one.
    marked = source.read_bytes()[:2] in (b"\xef\xbb", b"\xff\xfe", b"\xfe\xff")
    with target.open("w", encoding="utf-8-sig" if marked else "utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *names.values()], delimiter=delimiter_of(source), restval="")
        writer.writeheader()
        for line in lines:
            writer.writerow({name: " ".join(v) if isinstance(v, list) else v for name, v in line.items()})


def _results(row: _Row) -> dict[str, Any]:
    score = None if row.score is None else round(row.score, 4)
    return {"answer": row.answer, "score": score, "unknown_words": list(row.unknown), "problem": row.problem}
