"""The calls of one attention as one layer: its pictures by head, and its rows of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.hf import Recording, Seen

_MEANS = ("of", "entropy", "support", "effective", "entropy of equal weights")


def maps_by_head(calls: Sequence[Seen]) -> Tensor:
    """What each head of an attention looks at, (H, h, w): the row that was asked for, or the mean weight of a patch.

    `calls`: those of one layer: one, or one for each window of the picture.
    """
    if calls[-1].summary.rows is not None:
        return calls[-1].pictures(calls[-1].summary.rows)[0, :, 0]
    queries = [one.queries for one in calls]
    drawn = [one.pictures()[0] * count for one, count in zip(calls, queries, strict=True)]
    return torch.stack(drawn).sum(0) / max(1, sum(queries))


def table_rows(seen: Recording, query: str | Sequence[int]) -> list[dict[str, Any]]:
    """One row for each layer and head, each figure beside that of equal weights on all keys.

    "on patches" is the mass that `maps_by_head` has. Of an attention that is called for each window of a picture the
    row has the means over all queries. Where `query` is a place, as the last token of a prompt, the row is of that one
    alone: those before it see fewer keys.
    """
    rows: list[dict[str, Any]] = []
    for calls in seen.layers:
        queries = torch.tensor([float(one.queries) for one in calls])
        shares = queries / queries.sum()
        tables = [Recording([_of_query(one, query)]).table() for one in calls]
        mass = maps_by_head(calls).sum((-2, -1)) if calls[0].tokens.grid is not None else None
        equal = float(torch.dot(shares, torch.tensor([_share_of_patches(one) for one in calls])))
        for head, windows in enumerate(zip(*tables, strict=True)):
            row = dict(windows[0])
            for window in windows:
                window["entropy of equal weights"] = math.log(window["of"])
            for name in _MEANS:
                if len(windows) > 1 or name not in row:
                    row[name] = sum(float(s) * window[name] for s, window in zip(shares, windows, strict=True))
            row["on patches"] = 0.0 if mass is None else float(mass[head])
            rows.append(row | {"on patches of equal weights": equal})
    return rows


def _of_query(one: Seen, query: str | Sequence[int]) -> Seen:
    """The call with the figures of some queries alone; as it is, if `query` is a kind of token."""
    if isinstance(query, str):
        return one
    entropy, support = (None if x is None else x[..., list(query)] for x in (one.summary.entropy, one.summary.support))
    return replace(one, summary=replace(one.summary, entropy=entropy, support=support))


def _share_of_patches(one: Seen) -> float:
    """The share of the keys that are patches of the picture that is drawn."""
    tokens = one.tokens
    if tokens.grid is None:
        return 0.0
    if tokens.windows is not None:
        return tokens.grid[0] * tokens.grid[1] / (tokens.windows.count * tokens.length)
    return float(tokens.pictures(torch.ones(tokens.length)).sum()) / tokens.length
