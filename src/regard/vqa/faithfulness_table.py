"""Faithfulness in a table, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regard.vqa.faithfulness import ATTENTION, BASELINES, CURVES, TRACED, Faithfulness
from regard.vqa.tables import cell, table

_BETTER = {"deletion": "lower", "insertion": "higher"}
MEANING = (
    "Cells are hidden in the order of the attention, the highest first (deletion), or all but the highest\n"
    "(insertion). Numbers are areas under the score of the model's answer: lower is better for deletion, higher for\n"
    "insertion; against: less the area of another ranking of the cells, on the same questions."
)


def columns_of(found: Faithfulness) -> dict[str, float]:
    """The area of each curve, and its difference from each baseline, by the name of the column."""
    columns = {}
    for curve in CURVES:
        columns[curve] = found.areas[curve][ATTENTION].mean
        columns |= {_against(curve, name): found.gains[curve][name].mean for name in BASELINES}
    return columns


def faithfulness_table(rows: Mapping[str, Faithfulness]) -> str:
    """A table with a row for each kind of attention, with intervals from drawing pictures again; "" without rows."""
    if not rows:
        return ""
    content = {}
    for kind, found in rows.items():
        cells = {}
        for curve in CURVES:
            cells[curve] = str(found.areas[curve][ATTENTION])
            cells |= {_against(curve, name): _signed(*found.gains[curve][name]) for name in BASELINES}
        content[kind] = cells
    first = next(iter(rows.values()))
    title = f"Faithfulness, {first.questions} questions, cells hidden {first.hidden}"
    parts = [table(f"{title}: {curve}", _only(content, curve)) for curve in CURVES]
    return "\n\n".join([*parts, MEANING])


def seeds_table(rows: Mapping[str, Mapping[str, Sequence[float]]], about: str) -> str:
    """The same over seeds: numbers by kind and column, as of `columns_of`, one for each seed."""
    content = {kind: {name: cell(values, 3) for name, values in columns.items()} for kind, columns in rows.items()}
    parts = [table(f"Faithfulness, {about}: {curve}", _only(content, curve)) for curve in CURVES]
    return "\n\n".join([*parts, MEANING])


def verdict(found: Faithfulness) -> str:
    """Whether hiding what the attention points at matters more than hiding something else, in a sentence or two.

    A baseline is beaten if the intervals of both differences say so.
    """
    said = {words: [found.better(curve, name) for curve in CURVES] for name, words in _ORDERS_IN_WORDS.items()}
    beaten = [words for words, better in said.items() if all(better)]
    lost = [words for words, better in said.items() if False in better]
    unclear = [words for words in said if words not in (*beaten, *lost)]
    parts = []
    if beaten:
        parts.append(f"What it shows matters to the answer more than {_listed(beaten)}, by both curves")
    if lost:
        parts.append(f"it tells less about the answer than {_listed(lost)}, by at least one curve")
    if unclear:
        parts.append(f"it is not clearly better than {_listed(unclear)}")
    traced = [found.better(curve, TRACED) for curve in CURVES]
    if False in traced and True not in traced:
        parts.append("traced back through self-attention it tells more: the information came from other cells")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


_ORDERS_IN_WORDS = {
    "random": "as many cells drawn at random",
    "centre": "those nearest to the centre",
    "gradient x input": "those of the largest gradient x input",
}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _against(curve: str, baseline: str) -> str:
    return f"{curve} against {baseline}"


def _only(rows: Mapping[str, Mapping[str, str]], curve: str) -> dict[str, dict[str, str]]:
    """The columns of one curve, with its direction in the header."""
    return {
        kind: {
            f"area ({_BETTER[curve]} is better)" if name == curve else name.removeprefix(f"{curve} "): value
            for name, value in cells.items()
            if name.startswith(curve)
        }
        for kind, cells in rows.items()
    }


def _signed(mean: float, low: float, high: float) -> str:
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
