"""The one place that looks into `functools.partial`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """A callable with arguments that are already fixed."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def bound_of(thing: Any) -> Bound | None:
    """The function and the fixed arguments of a partial; None for anything else.

    >>> bound_of(functools.partial(max, 3, key=abs))
    Bound(function=<built-in function max>, arguments=(3,), keywords={'key': <built-in function abs>})
    """
    return Bound(thing.func, thing.args, thing.keywords) if isinstance(thing, functools.partial) else None
