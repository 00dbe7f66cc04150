"""Completion of values by the shell, for options that are no paths: the names that begin with what was typed.

An option without it that takes a path needs nothing here: where a command offers no names, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A function for `autocompletion=` of an option: those of `names` that begin with what was typed.

    The names are suggestions, other values can be typed. If none begins so, the shell completes paths.

    >>> among(["small", "small-wide", "efficientnet-lite0"])("small-")
    ['small-wide']
    """
    suggested = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in suggested if name.startswith(incomplete)]

    return complete
