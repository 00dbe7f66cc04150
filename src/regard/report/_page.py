"""The report as one self-contained HTML page: a summary, if there is one, then the examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from regard.report._entries import Entry
from regard.report._examples import examples, legend
from regard.report._faithfulness import faithfulness_section
from regard.report._plot import accuracy_plot
from regard.report._style import policy, script, style
from regard.training._progress import duration
from regard.vqa.results import Results
from regard.vqa.summary import RunSummary


def page(
    entries: Sequence[Entry],
    title: str,
    summary: RunSummary | None = None,
    results: Results | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The HTML. All text of the user is escaped.

    `entries`: the examples.
    `title`: of the page.
    `summary`: of the run; default None: then `results`, if there are any, give its accuracy.
    `results`: of evaluations; default None.
    `notes`: sentences above the examples; default none.
    """
    head = _summary(summary) if summary is not None else _results(results) if results is not None else ""
    if results is not None:
        measured = results.faithfulness(*(() if summary is None else (summary.attention, summary.split)))
        head += "" if measured is None else faithfulness_section(*measured)
    said = "".join(f'<p class="note">{escape(note)}</p>\n' for note in notes)
    shown = f"<h2>Examples</h2>\n{legend()}{examples(list(entries))}\n" if entries else ""
    return document(title, f"{head}{said}{shown}")


def document(title: str, content: str) -> str:
    """A page with a title, which is escaped, and a content, which is HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f'<style>{style()}</style>\n</head>\n<body>\n<main>\n<h1 dir="auto">{escape(title)}</h1>\n{content}'
        "</main>\n<footer>Written by regard. The page is one file: it loads nothing and sends nothing.</footer>\n"
        f"<script>{script()}</script>\n</body>\n</html>\n"
    )


def _summary(summary: RunSummary) -> str:
    by = {"question type": "By question type", "answer type": "By answer type", "first words": "By first words"}
    left_out = "".join(f'<li><bdi lang="">{escape(sentence)}</bdi></li>' for sentence in summary.left_out)
    return (
        f'<p class="lead">{escape(summary.sentence)}</p>\n{_gain(summary)}{_untrained(summary)}'
        f"<dl>{_facts(summary)}</dl>\n<h2>{by[summary.grouping]}</h2>\n{accuracy_plot(summary)}"
        f"<h2>What was left out</h2>\n{f'<ul>{left_out}</ul>' if left_out else '<p>Nothing.</p>'}\n"
    )


def _gain(summary: RunSummary) -> str:
    """Whether looking at the pictures helps, in words."""
    if summary.gain is None:
        return ""
    low, high = summary.gain
    best = max(summary.baselines.items(), key=lambda entry: entry[1])[0]
    if low > 0:
        return f"<p>Looking at the picture is worth {low:.0f} to {high:.0f} points over the {escape(best)}.</p>\n"
    if high < 0:
        return (
            f'<p class="note">That is worse than the {escape(best)}: the model has not learned from the pictures.</p>\n'
        )
    return (
        f'<p class="note">That is not clearly better than the {escape(best)} (between {_points(low)} and '
        f"{_points(high)}): nothing shows yet that the pictures help. More questions, more training or a better "
        "backbone may.</p>\n"
    )


def _points(difference: float) -> str:
    return f"{abs(difference):.0f} points {'less' if difference < 0 else 'more'}"


def _untrained(summary: RunSummary) -> str:
    return untrained_note("usually answers far more questions") if summary.untrained else ""


def untrained_note(better: str) -> str:
    """That the weights of the backbone are random; `better` says what one that was trained would do."""
    return (
        '<p class="note">The backbone, the part that sees the pictures, has random weights. One that was trained on '
        f"photographs {better}.</p>\n"
    )


def _facts(summary: RunSummary) -> str:
    facts = {
        "measured on": f"{summary.questions:,} questions about {summary.pictures:,} pictures that it was not "
        f"trained on (split {summary.split} of {summary.data})",
        "trained on": f"{summary.train_questions:,} questions about {summary.train_pictures:,} pictures"
        + ("" if summary.seconds is None else f", in {duration(summary.seconds)}"),
        "without the picture": "; ".join(f"{name} {value:.1f} %" for name, value in summary.baselines.items()),
        "output attention": summary.attention,
        "backbone": summary.backbone + (" (random weights)" if summary.untrained else ""),
        "how it is counted": "An answer counts as right if at least four of ten people gave it, and in part if fewer "
        "did; a question with one known answer counts fully or not. Answers are compared in small letters, without "
        "articles. The range in brackets is the 95 % interval from drawing the pictures again, each with all its "
        "questions.",
    }
    return listed_facts(facts)


def listed_facts(facts: Mapping[str, str]) -> str:
    """Facts by name as items of a definition list; empty ones are left out."""
    return "".join(
        f'<dt>{name}</dt><dd><bdi lang="">{escape(words)}</bdi></dd>' for name, words in facts.items() if words
    )


def _results(results: Results) -> str:
    """Accuracies by split and attention, of a run that has been evaluated and has no summary."""
    rows = "".join(
        f'<li><bdi lang="">{escape(split)}</bdi>, {escape(kind)}: {numbers["overall"]:.1f} % right</li>'
        for split, kinds in results.splits.items()
        for kind, numbers in kinds.items()
        if numbers["overall"] is not None  # of an attention that does not look, which answers nothing
    )
    return f"<h2>Accuracy</h2>\n<ul>{rows}</ul>\n"
