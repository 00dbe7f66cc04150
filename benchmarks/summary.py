"""The table at the head of docs/benchmarks.md: each benchmark against its best peers, the limit and its promises."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.neighbour import ratios

HEADER = (
    "| benchmark | cases | against the best peer | with a busy neighbour | over the machine's limit | promises kept |\n"
    "|---|---|---|---|---|---|"
)


def summary(record: dict[str, Any], busy: dict[str, Any] | None) -> str:
    """The line of a benchmark under HEADER: medians, and in brackets the least and the most.

    `record`: what it recorded.
    `busy`: what it recorded with a busy neighbour, or None.
    """
    best: dict[str, dict[str, Any]] = {}
    for row in record["rows"]:
        if row["case"] not in best or row["ratio"] < best[row["case"]]["ratio"]:
            best[row["case"]] = row
    beside = ratios(busy)
    pressed = [beside[key] for row in best.values() if (key := (row["case"], row["peer"])) in beside]
    over = [row["ours"] / row["limit"] for row in best.values() if row.get("limit")]
    kept = [row["kept"] for row in record["rows"] if row["kept"] is not None]
    name = record["benchmark"]
    return " | ".join(
        (
            f"| [{name}](#{name})",
            str(len(best)),
            _spread([row["ratio"] for row in best.values()]),
            _spread(pressed),
            _spread(over),
            f"{sum(kept)} of {len(kept)} |" if kept else " |",
        )
    )


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})"
