"""Writing a report to a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from regard._files import replacing
from regard._problem import Problem
from regard.report import _page, _pictures
from regard.report._entries import Entry


def write_report(path: Path | str, entries: Iterable[Entry], title: str = "Attention report") -> Path:
    """Write a report as HTML, PNG or JSON, by the suffix of `path`, and return the path.

    All three hold the question, the answers with their scores, and where each attention looked; HTML and JSON also the
    effective weights, JSON all numbers. Answers that people gave, if an entry has them, are shown beside, and the
    first prediction is marked as right or wrong. The file is written whole or not at all.

    >>> import tempfile
    >>> import torch
    >>> from types import SimpleNamespace
    >>> prediction = SimpleNamespace(attention="mine", to_json=lambda: {"answer": "a cat"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(f"{folder}/all.json", [Entry(torch.zeros(3, 4, 4), "What is it?", [prediction])]).name
    'all.json'
    """
    path, entries = Path(path), list(entries)
    if not entries:
        raise Problem("there is nothing to report: ask at least one question.")
    kind = path.suffix.lower()
    if kind == ".html":
        content = _page.page(entries, title).encode()
    elif kind == ".png":
        content = _pictures.report_sheet(entries)
    elif kind == ".json":
        content = (json.dumps({"title": title, "entries": [e.to_json() for e in entries]}, indent=1) + "\n").encode()
    else:
        raise Problem(f"a report cannot be written as {path.name!r}. Choose a name that ends in .html, .png or .json.")
    with replacing(path) as beside:
        beside.write_bytes(content)
    return path


def write_drawing(path: Path | str, entry: Entry) -> Path:
    """Draw one question: the picture and each attention beside it in colour, with its answer; return the path.

    `path`: its suffix is the format: .png, .jpg, .jpeg, .webp, .pdf or .svg; others are a Problem (`check_drawing`).
    `entry`: the question with its predictions.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> looked = {"attention": "mine", "weights": torch.eye(2) / 2, "density": None}
    >>> said = SimpleNamespace(answer="a cat", confidence=0.9, top=[("a cat", 0.9)], **looked)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     picture = torch.zeros(3, 40, 40, dtype=torch.uint8)
    ...     write_drawing(f"{folder}/cat.png", Entry(picture, "What is it?", [said])).name
    'cat.png'
    """
    path = Path(path)
    _pictures.check_drawing(path)
    content = _pictures.drawing(entry, path.suffix)
    with replacing(path) as beside:
        beside.write_bytes(content)
    return path
