"""The part of the page that says whether the answers rest on what the attention shows."""

from __future__ import annotations

from html import escape

from regard.vqa.faithfulness import ATTENTION, CURVES, RANKINGS, Faithfulness
from regard.vqa.faithfulness_table import verdict

_PLOT_LEFT, _PLOT_TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 34, 8, 240, 120  # of a plot, in its own units
_TITLES = {
    "deletion": "Hiding the highest cells first: the score should fall at once",
    "insertion": "Showing the highest cells alone: the score should rise at once",
}


def faithfulness_section(split: str, found: Faithfulness) -> str:
    """A heading, what was found in words, both curves with a line for each ranking, and the areas in a table."""
    plots = "".join(
        f"<figure>{_curves(found, curve)}<figcaption>{_TITLES[curve]}.</figcaption></figure>\n" for curve in CURVES
    )
    rows = "".join(
        f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{found.areas[curve][name]}</td>" for curve in CURVES) + "</tr>"
        for name in RANKINGS
    )
    return (
        "<h2>Does the answer rest on what is shown?</h2>\n"
        f"<p>{escape(verdict(found))}</p>\n"
        f'<div class="pictures curves">{plots}</div>\n<p class="soft"><small>{_keys()}</small></p>\n'
        '<div class="table"><table><thead><tr><th>cells in the order of</th><th>area, deletion (lower is better)</th>'
        f"<th>area, insertion (higher is better)</th></tr></thead><tbody>{rows}</tbody></table></div>\n"
        f'<p class="soft"><small>{found.questions:,} questions of the split <bdi lang="">{escape(split)}</bdi>, output '
        f"attention {escape(found.attention)}; cells hidden {escape(found.hidden)}. The curves are the mean score of "
        "the answer that the model gives to the whole picture, by the share of cells that are hidden or shown; in "
        "brackets 95 % intervals from drawing the pictures again.</small></p>\n"
    )


def _keys() -> str:
    return " ".join(
        f'<svg class="line r{number}" viewBox="0 0 24 8" aria-hidden="true"><path d="M0 4H24"/></svg> {escape(name)}'
        for number, name in enumerate(RANKINGS)
    )


def _curves(found: Faithfulness, curve: str) -> str:
    """One plot: the score from 0 to 1 over the share of cells, a line for each ranking; the attention is drawn last."""
    marks = "".join(
        f'<text x="{_PLOT_LEFT - 4}" y="{_y(value) + 3:.1f}" text-anchor="end">{value:g}</text>'
        f'<path class="rule" d="M{_PLOT_LEFT} {_y(value):.1f}H{_PLOT_LEFT + _PLOT_WIDTH}"/>'
        for value in (0.0, 0.5, 1.0)
    )
    marks += "".join(
        f'<text x="{_x(share):.1f}" y="{_y(0) + 13:.0f}" text-anchor="{anchor}">{100 * share:.0f} %</text>'
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    )
    lines = ""
    for number, name in reversed(list(enumerate(RANKINGS))):
        points = " ".join(
            f"{_x(share):.1f},{_y(score):.1f}"
            for share, score in zip(found.shares, found.curves[curve][name], strict=True)
        )
        lines += f'<polyline class="r{number}" points="{points}"/>'
    first = found.areas[curve][ATTENTION]
    label = f"Mean score of the answer by the share of cells, {curve}; area of the attention {first.mean:.2f}"
    size = f"0 0 {_PLOT_LEFT + _PLOT_WIDTH + 14} {_PLOT_TOP + _PLOT_HEIGHT + 18}"
    return f'<svg class="line" viewBox="{size}" role="img" aria-label="{label}">{marks}{lines}</svg>'


def _x(share: float) -> float:
    return _PLOT_LEFT + _PLOT_WIDTH * share


def _y(score: float) -> float:
    return _PLOT_TOP + _PLOT_HEIGHT * (1 - score)
