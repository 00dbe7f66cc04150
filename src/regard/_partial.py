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


def bound_of(thing: Any) -> Bound:
    """The function and the arguments of a partial; any other callable has no fixed arguments.

    >>> bound_of(functools.partial(max, 3, key=abs))
    Bound(function=<built-in function max>, arguments=(3,), keywords={'key': <built-in function abs>})
    """
    if isinstance(thing, functools.partial):
        return Bound(thing.func, thing.args, thing.keywords)
    return Bound(thing, (), {})


def is_partial(thing: Any) -> bool:
    """Whether some arguments of a callable were fixed by `functools.partial`."""
    return isinstance(thing, functools.partial)
