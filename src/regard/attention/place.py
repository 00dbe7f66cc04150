"""Where a block of weights lies in all weights of an attention."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where a block of weights lies.

    `part`: its index in the leading dimensions; () for all of them.
    `queries`: its rows.
    `keys`: how many keys, from the first one, its rows may see.
    """

    part: tuple[int, ...]
    queries: slice
    keys: int
