"""A report as a picture: the question, the answers, and the attentions side by side."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from PIL import Image

from regard._problem import Problem
from regard.report import _overlay
from regard.report._entries import Entry, Predicted
from regard.report._examples import MARKS, mark_of
from regard.vqa.looks import half_of_attention, share_in_words

RESOLUTION = 110
DRAWING_FORMATS = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg")  # of a drawing of one question
_DRAWN_SIDE = 640  # pixels of the longer side of a picture
_COLUMNS, _WIDE = 4, 34  # panels in a row; letters of a line under one
# Fonts with other scripts than those of matplotlib's own, where they are installed.
_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari",
          "Noto Sans Thai", "Noto Sans", "Arial Unicode MS", "Microsoft YaHei", "PingFang SC", "Segoe UI")  # fmt: skip


def check_drawing(path: Path) -> None:
    """Raise a Problem unless a drawing can be written to a file of this name.

    >>> check_drawing(Path("out.gif"))
    Traceback (most recent call last):
    regard._problem.Problem: a drawing cannot be written as 'out.gif'. Choose a name that ends in .png, .jpg, ...
    """
    if path.suffix.lower() not in DRAWING_FORMATS:
        known = ", ".join(DRAWING_FORMATS)
        raise Problem(f"a drawing cannot be written as {path.name!r}. Choose a name that ends in {known}.")


def drawing(entry: Entry, suffix: str = ".png") -> bytes:
    """One question: the picture, and beside it each attention in colour with its answer, on one scale.

    `entry`: the question.
    `suffix`: the format, one of `DRAWING_FORMATS`; default .png.
    """
    pixels = _overlay.fitted(entry.picture, _DRAWN_SIDE)
    height, width = pixels.shape[:2]
    count = 1 + len(entry.predictions)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    ratio = min(3.0, max(0.25, height / width))
    title = _wrapped(entry.question, 26 * columns)
    head = 0.3 * len(title.splitlines()) + 0.15
    figure = Figure(figsize=(3.2 * columns + 0.9, rows * (3.0 * ratio + 0.85) + head), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flatten())
    figure.suptitle(title, fontsize=13, family=_families(), parse_math=False)
    _panel(panels[0], pixels, _under_picture(entry))
    for panel, predicted in zip(panels[1:], entry.predictions, strict=False):
        _panel(panel, _overlay.overlay(pixels, _overlay.attention_values(predicted, height, width)), _said(predicted))
    for panel in panels[count:]:
        panel.set_axis_off()
    scale = ScalarMappable(PowerNorm(0.5, 0, _overlay.TOP), _overlay.WARM)
    bar = figure.colorbar(scale, ax=panels, shrink=0.8, extend="max", ticks=[0, 1, 4, 9, 16])
    bar.set_label("attention (1: the same everywhere); white line: half of it", fontsize=9)
    return _written(figure, suffix)


def report_sheet(entries: Sequence[Entry]) -> bytes:
    """All entries as one PNG, one below the other."""
    tiles = [Image.open(io.BytesIO(drawing(entry))).convert("RGB") for entry in entries]
    sheet = Image.new("RGB", (max(t.width for t in tiles), sum(t.height for t in tiles)), "white")
    top = 0
    for tile in tiles:
        sheet.paste(tile, (0, top))
        top += tile.height
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _panel(panel: Axes, pixels: _overlay.Rgb, words: str) -> None:
    panel.imshow(numpy.asarray(pixels), interpolation="nearest", aspect="auto" if _is_thin(pixels) else "equal")
    panel.set(xticks=[], yticks=[])
    panel.set_xlabel(words, fontsize=9.5, family=_families(), parse_math=False)


def _is_thin(pixels: _overlay.Rgb) -> bool:
    """Whether a panel would have no room for the picture in its own shape."""
    height, width = pixels.shape[:2]
    return not 0.25 <= height / width <= 3


def _under_picture(entry: Entry) -> str:
    """Under the picture: what people said, if it is known, and whether the answer is right."""
    if not entry.answers:
        return "the picture"
    answer = max(entry.answers, key=list(entry.answers).count)
    return f"{_wrapped(f'{entry.truth_words}: {answer}', _WIDE)}\n{MARKS[mark_of(entry)]}"


def _said(predicted: Predicted) -> str:
    """Under an attention: the answer with its score, the next ones, and how much of the picture holds half of it."""
    best = _wrapped(f"{predicted.answer} (score {predicted.confidence:.2f})", _WIDE)
    others = ", ".join(f"{answer} {score:.2f}" for answer, score in list(predicted.top)[1:3])
    share = share_in_words(half_of_attention(predicted.weights, predicted.density))
    lines = [predicted.attention, best, _wrapped(others, _WIDE, 1), f"half of it on {share} of the picture"]
    return "\n".join(filter(None, lines))


def _wrapped(text: str, width: int, most: int = 3) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=most, placeholder=" …")) or ""


@cache
def _families() -> list[str]:
    """The fonts for texts of any language: matplotlib's own, then those that are installed."""
    return ["DejaVu Sans", *sorted(set(_FONTS) & set(font_manager.get_font_names()), key=_FONTS.index)]


def _written(figure: Figure, suffix: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that no installed font has is drawn as a box; the answer is printed as well.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        figure.savefig(file, format=suffix.lower().lstrip("."), dpi=RESOLUTION)
    return file.getvalue()
