"""The pictures of a report, as PNG."""

from __future__ import annotations

import io
import textwrap

from matplotlib.figure import Figure
from PIL import Image

from regard import show
from regard.report._entries import Entry, Predicted

RESOLUTION = 90
LONGEST = 28  # letters over a panel, before they run into those of the next


def looks(entry: Entry) -> bytes:
    """Where each attention looked, under its answer: one scale for all."""
    panels = {
        f"{p.attention}\n{_best_answers(p)}": p.weights if p.density is None else p.density for p in entry.predictions
    }
    return _png(show.compare(entry.picture, panels))


def contributions(entry: Entry) -> bytes:
    """What each cell contributed to the answer under each attention: one scale for all."""
    panels = {
        f"{p.attention}\nentropy {p.entropy:.2f}, area {p.support_area:.1%}": p.effective for p in entry.predictions
    }
    return _png(show.compare(entry.picture, panels))


def _best_answers(p: Predicted) -> str:
    """The three best answers with their scores, in one line, or fewer if it would be too long."""
    said = [f"{textwrap.shorten(answer, 12, placeholder='…')} {score:.0%}" for answer, score in p.top[:3]]
    while len(said) > 1 and len(", ".join(said)) > LONGEST:
        said.pop()
    return ", ".join(said)


def report_sheet(entries: list[Entry]) -> bytes:
    """The whole report as one picture: for each entry the question, the looks, the contributions."""
    tiles = [
        Image.open(io.BytesIO(made))
        for entry in entries
        for made in (_heading(entry.question), looks(entry), _heading("effective weights", 10), contributions(entry))
    ]
    whole = Image.new("RGB", (max(t.width for t in tiles), sum(t.height for t in tiles)), "white")
    top = 0
    for tile in tiles:
        whole.paste(tile.convert("RGB"), (0, top))
        top += tile.height
    written = io.BytesIO()
    whole.save(written, "PNG")
    return written.getvalue()


def _heading(text: str, size: int = 13) -> bytes:
    lines = textwrap.wrap(text, 70) or [""]
    figure = Figure(figsize=(8, (0.35 * len(lines) * size / 13) + 0.1))
    # Words of a question are words, also when there is a dollar sign among them.
    figure.text(0.01, 0.5, "\n".join(lines), va="center", fontsize=size, parse_math=False)
    return _png(figure)


def _png(figure: object) -> bytes:
    assert isinstance(figure, Figure)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=RESOLUTION)
    return written.getvalue()
