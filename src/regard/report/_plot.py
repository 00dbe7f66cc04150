"""The drawings of the page, as SVG inside it: accuracy by type, the scale of colours, bars of scores."""

from __future__ import annotations

from html import escape

from regard.report._overlay import TOP, WARM, colour_strength
from regard.vqa.summary import RunSummary

_STEPS, _LEFT, _LONG = 32, 16, 212  # the scale of colours: its pieces, where it begins, its length


def accuracy_plot(summary: RunSummary) -> str:
    """A bar for all questions, with its interval, and one for each type; the best baseline is a mark across each.

    Every number is written beside its bar, so that nothing is told by the drawing alone.
    """
    best = max(summary.baselines.values(), default=None)
    rows = [accuracy_row("all questions", summary.questions, summary.accuracy, best, summary.interval)]
    for group in summary.groups:
        baseline = group.best_baseline
        rows.append(
            accuracy_row(group.name, group.questions, group.accuracy, None if baseline is None else baseline[1])
        )
    mark = '; <i class="key mark"></i> the best one gets without looking at the picture' if summary.baselines else ""
    return (
        f'<ul class="plot">\n{"".join(rows)}</ul>\n'
        f'<p class="soft"><small><i class="key"></i> answers that are right, in percent{mark}. The thin line is the '
        "range that holds the true accuracy with 95 % confidence.</small></p>\n"
    )


def accuracy_row(
    name: str,
    questions: int,
    accuracy: float,
    baseline: float | None,
    interval: tuple[float, float] | None = None,
    marked: str = "without",
) -> str:
    """A line of a list of class "plot": a name, how many it is of, and its accuracy in percent.

    `baseline`: marked across the bar; None for none.
    `interval`: of the accuracy, in percent, drawn as a thin line; default None.
    `marked`: what the baseline is called beside the bar; default "without".
    """
    shapes = _bar(accuracy)
    if interval is not None:
        low, high = interval
        shapes += (
            f'<line class="ends" x1="{low:.2f}" x2="{high:.2f}" y1="5" y2="5" vector-effect="non-scaling-stroke"/>'
        )
    if baseline is not None:
        left = min(max(baseline - 0.4, 0.0), 99.2)
        shapes += f'<rect class="mark" x="{left:.2f}" width=".8" height="10"/>'
    beside = "" if baseline is None else f" <span class='soft'>{escape(marked)}: {baseline:.0f} %</span>"
    return (
        f'<li{" class=all" if interval else ""}><span><bdi lang="">{escape(name)}</bdi> '
        f'<small class="soft">{questions:,}</small></span>'
        f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{shapes}</svg>'
        f'<span class="n">{accuracy:.0f} %{beside}</span></li>\n'
    )


def colour_scale() -> str:
    """The scale of colours, from no attention to the most, in multiples of an even spread."""
    width = _LONG / _STEPS
    pieces = "".join(
        f'<rect x="{_LEFT + i * width:.2f}" y="4" width="{width:.2f}" height="14" '
        f'fill="{_hex(i / (_STEPS - 1))}" fill-opacity="{max(0.08, i / (_STEPS - 1)):.2f}"/>'
        for i in range(_STEPS)
    )
    places = [(0.0, "none"), (1.0, "1"), (4.0, "4"), (9.0, "9"), (TOP, f"{TOP:.0f} x +")]
    marks = "".join(
        f'<text x="{_LEFT + _LONG * float(colour_strength(value)):.1f}" y="34" text-anchor="middle">{text}</text>'
        for value, text in places
    )
    label = f"Colours from no attention to {TOP:.0f} times an even spread and more"
    drawn = f'<g shape-rendering="crispEdges">{pieces}</g>{marks}'
    return f'<svg viewBox="0 0 250 40" role="img" aria-label="{label}">{drawn}</svg>'


def score_bar(score: float) -> str:
    """A bar for a score from 0 to 1."""
    bar = _bar(100 * min(max(score, 0.0), 1.0))
    return f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>'


def _bar(percent: float) -> str:
    back = '<rect class="back" width="100" height="10" opacity=".5"/>'
    return f'{back}<rect class="bar" width="{percent:.2f}" height="10"/>'


def _hex(strength: float) -> str:
    red, green, blue, _ = WARM(strength, bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"
