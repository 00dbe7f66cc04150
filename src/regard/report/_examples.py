"""The examples of a page: each question with its picture, answer, truth, and where each attention looked."""

from __future__ import annotations

import base64
from collections import Counter
from html import escape

from torch import Tensor

from regard.report import _overlay
from regard.report._entries import Entry, Predicted
from regard.report._plot import colour_scale, score_bar
from regard.vqa.looks import looks_in_words

PICTURE_BUDGET = 5_000_000  # bytes of all pictures of a page, before they are written as text, which adds a third
SHOWN_SIDE, LARGEST = 440, 45_000  # of one picture: pixels of the longer side, bytes
LONGEST = 240  # letters of an answer
SHOWN_MOVED = 0.1  # of what was read, from which on it is shown where it came from
MARKS = {"right": "✓ right", "part": "◐ partly right", "wrong": "✗ wrong"}


def legend() -> str:
    """How to read the pictures: one legend for all."""
    return (
        f'<div class="legend">{colour_scale()}<p><b>How to read the pictures.</b> Colour shows where the model looked: '
        "clear means not at all, 1 as much as if it looked everywhere alike, 4 four times as much, and so on; the "
        "scale is the same in all pictures. The white line goes around the places with the most attention that "
        "together hold half of it. Attention shows where the answer was read from, which is not always why it was "
        "given, nor where what was read came from: that is shown below a picture where it differs.</p></div>\n"
    )


def examples(entries: list[Entry]) -> str:
    """The filter, and one article per entry. All text of the user is escaped."""
    count = sum(
        1 + sum(1 + (p.density is not None) + (_moved(p) is not None) for p in entry.predictions) for entry in entries
    )
    at_most = min(LARGEST, PICTURE_BUDGET // max(1, count))
    return _filter(entries) + "\n".join(_article(entry, at_most) for entry in entries)


def mark_of(entry: Entry, predicted: Predicted | None = None) -> str:
    """right, part or wrong, of a prediction, default the first; "" if the true answer is unknown."""
    credit = entry.credit(predicted or entry.predictions[0])
    if credit is None:
        return ""
    return "right" if credit >= 0.5 else "part" if credit > 0 else "wrong"


def _filter(entries: list[Entry]) -> str:
    """Two choices, by right and wrong and by type, each if there is something to choose; the script shows them."""
    marks = Counter(filter(None, map(mark_of, entries)))
    groups = Counter(entry.group for entry in entries if entry.group)
    choices = ""
    if len(marks) > 1:
        options = [(mark, f"{words} ({marks[mark]})") for mark, words in MARKS.items() if marks[mark]]
        choices += _select("mark", "Answers", options)
    if len(groups) > 1:
        options = [(name, f"{_short(name, 60)} ({groups[name]})") for name in groups]
        choices += _select("group", "Type", options)
    if not choices:
        return ""
    return f'<form class="filter" hidden>{choices}<output aria-live="polite" class="soft"></output></form>\n'


def _select(name: str, label: str, options: list[tuple[str, str]]) -> str:
    inner = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options)
    return (
        f'<label>{label} <select name="{name}" autocomplete="off"><option value="">all</option>{inner}</select></label>'
    )


def _article(entry: Entry, at_most: int) -> str:
    pixels = _overlay.fitted(entry.picture, SHOWN_SIDE)
    mark = mark_of(entry)
    name = f'<figcaption>the picture <bdi lang="">{escape(_short(entry.name, 80))}</bdi></figcaption>'
    figures = [f"<figure>{_image(_overlay.jpeg(pixels, at_most), f'The picture of: {entry.question}')}{name}</figure>"]
    figures += [_figure(entry, predicted, pixels, at_most) for predicted in entry.predictions]
    details = ""
    if continuous := [p for p in entry.predictions if p.density is not None]:
        inner = "".join(_contribution(entry, p, p.effective, pixels, at_most) for p in continuous)
        details = _details("What each cell of the picture contributed (hatched: less than nothing)", inner)
    if moved := [p for p in entry.predictions if _moved(p) is not None]:
        inner = "".join(_contribution(entry, p, p.traced, pixels, at_most) for p in moved)  # type: ignore[attr-defined]
        share = max(_moved(p) or 0.0 for p in moved)
        details += _details(
            f"{100 * share:.0f} % of what it read there came from other places of the picture, through self-attention: "
            "where it came from (hatched: less than nothing)",
            inner,
        )
    return (
        f'<article data-mark="{mark}" data-group="{escape(entry.group)}">\n'
        f'<h3 dir="auto" lang="">{escape(_short(entry.question, 2 * LONGEST))}</h3>\n'
        f'{_verdict(entry, mark)}<div class="pictures">\n{"".join(figures)}</div>\n{details}</article>'
    )


def _verdict(entry: Entry, mark: str) -> str:
    said = f"It {'says' if entry.labelled else 'answers'} <b>{_told(entry.predictions[0].answer)}</b>"
    badge = f'<span class="badge {mark}">{MARKS[mark]}</span> ' if mark else ""
    truth = f"; {entry.truth_words} {_truth(entry)}" if entry.answers else ""
    unknown = ""
    if entry.unknown:
        words = ", ".join(_told(word) for word in list(entry.unknown)[:12])
        unknown = f' <small class="soft">Words that it does not know: {words}.</small>'
    return f'<p class="verdict">{badge}{said}{truth}.{unknown}</p>\n'


def _truth(entry: Entry) -> str:
    """The answers people gave: the one, or the three commonest with how many gave them."""
    counts = Counter(str(answer) for answer in entry.answers)
    common = counts.most_common(3)
    if len(counts) == 1:
        return f"<b>{_told(common[0][0])}</b>"
    listed = ", ".join(f"<b>{_told(answer)}</b> ({n} of {len(entry.answers)})" for answer, n in common)
    others = len(counts) - len(common)
    return listed + (f" and {others} other answer{'s' if others > 1 else ''}" if others else "")


def _figure(entry: Entry, predicted: Predicted, pixels: _overlay.Rgb, at_most: int) -> str:
    height, width = pixels.shape[:2]
    drawn = _overlay.overlay(pixels, _overlay.attention_values(predicted, height, width))
    title = escape(predicted.attention)
    if len(entry.predictions) > 1:
        mark = mark_of(entry, predicted)
        sign = f' <span class="{mark}">{MARKS[mark]}</span>' if mark else ""
        title += f": {_told(predicted.answer)}{sign}"
    top = "".join(
        f"<li><span>{_told(answer, 40)}</span>{score_bar(score)}<span>{score:.2f}</span></li>"
        for answer, score in list(predicted.top)[:3]
    )
    alternative = f"Where {predicted.attention} attention looked: {entry.question}"
    return (
        f"<figure>{_image(_overlay.jpeg(drawn, at_most), alternative)}<figcaption><b>{title}</b>. "
        f"It {looks_in_words(predicted.weights.detach().cpu(), predicted.density)}. Scores from 0 to 1:"
        f'<ol class="scores">{top}</ol></figcaption></figure>\n'
    )


def _moved(predicted: Predicted) -> float | None:
    """The share of what was read that came from elsewhere, if it is known and large enough to be shown; else None."""
    share: float | None = getattr(predicted, "moved", None)  # predictions of other models have none
    return share if share is not None and share >= SHOWN_MOVED else None


def _details(summary: str, pictures: str) -> str:
    return f'<details><summary>{summary}</summary>\n<div class="pictures">{pictures}</div></details>\n'


def _contribution(entry: Entry, predicted: Predicted, weights: Tensor, pixels: _overlay.Rgb, at_most: int) -> str:
    """Weights on the cells, which may be negative, cell by cell."""
    height, width = pixels.shape[:2]
    cells = weights.detach().float().cpu()
    rows, columns = cells.shape
    values = cells.double().numpy() * cells.numel()
    spread = values[[[r * rows // height] for r in range(height)], [c * columns // width for c in range(width)]]
    drawn = _overlay.overlay(pixels, spread, line=False)
    description = f"What each cell contributed under {predicted.attention}: {entry.question}"
    image = _image(_overlay.jpeg(drawn, at_most), description)
    return f"<figure>{image}<figcaption>{escape(predicted.attention)}</figcaption></figure>"


def _told(text: str, longest: int = LONGEST) -> str:
    """A text of the user, escaped, in its own direction and language."""
    return f'<bdi lang="">{escape(_short(text, longest)) or "(empty)"}</bdi>'


def _short(text: str, longest: int) -> str:
    text = " ".join(str(text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _image(content: bytes, description: str) -> str:
    data = base64.b64encode(content).decode()
    return f'<img alt="{escape(_short(description, 2 * LONGEST))}" src="data:image/jpeg;base64,{data}">'
