"""The pictures of a report, as PNG."""

from __future__ import annotations

import io
import textwrap

from matplotlib.figure import Figure
from PIL import Image

from regard import show
from regard.report._entries import Entry, Predicted

RESOLUTION = 90
LONGEST = 28  # letters of a panel's title, before it overlaps the next


def attention_panels(entry: Entry) -> bytes:
    """The weights or density of each attention, titled with its answer, on one scale."""
    panels = {
        f"{p.attention}\n{_best_answers(p)}": p.weights if p.density is None else p.density for p in entry.predictions
    }
    return _png(show.compare(entry.picture, panels))


def contributions(entry: Entry) -> bytes:
    """What each cell contributed to the answer under each attention, on one scale."""
    panels = {
        f"{p.attention}\nentropy {p.entropy:.2f}, area {p.support_area:.1%}": p.effective for p in entry.predictions
    }
    return _png(show.compare(entry.picture, panels))


def _best_answers(p: Predicted) -> str:
    """The three best answers with their scores, in one line; fewer if it is too long."""
    answers = [f"{textwrap.shorten(answer, 12, placeholder='…')} {score:.0%}" for answer, score in p.top[:3]]
    while len(answers) > 1 and len(", ".join(answers)) > LONGEST:
        answers.pop()
    return ", ".join(answers)


def report_sheet(entries: list[Entry]) -> bytes:
    """The whole report as one picture: per entry the question, the attentions, the contributions."""
    tiles = [
        Image.open(io.BytesIO(png))
        for entry in entries
        for png in (
            _heading(entry.question),
            attention_panels(entry),
            _heading("effective weights", 10),
            contributions(entry),
        )
    ]
    sheet = Image.new("RGB", (max(t.width for t in tiles), sum(t.height for t in tiles)), "white")
    top = 0
    for tile in tiles:
        sheet.paste(tile.convert("RGB"), (0, top))
        top += tile.height
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _heading(text: str, size: int = 13) -> bytes:
    lines = textwrap.wrap(text, 70) or [""]
    figure = Figure(figsize=(8, (0.35 * len(lines) * size / 13) + 0.1))
    # A dollar sign in a question is no mathematics.
    figure.text(0.01, 0.5, "\n".join(lines), va="center", fontsize=size, parse_math=False)
    return _png(figure)


def _png(figure: object) -> bytes:
    assert isinstance(figure, Figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=RESOLUTION)
    return file.getvalue()
