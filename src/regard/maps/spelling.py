"""The one place that makes a map of whatever a caller wrote: a value, a function, a partial of one, a name, a callable.

`Sparsemax()`, `sparsemax`, `functools.partial(entmax, alpha=2)`, `Entmax(2.0)` and "sparsemax" are one map.
Algorithms are chosen by the value that `as_map` returns, so that a spelling never decides how something is computed.
"""

from __future__ import annotations

import functools
import re
from dataclasses import MISSING, fields
from types import FunctionType
from typing import Any

from torch import Tensor

from regard import _check
from regard.maps._value import Applied, MapValue
from regard.maps.transport import Sinkhorn
from regard.maps.values import TV, BudgetSparsemax, Entmax, Gate, Inverse, Mean, Normmax, Softmax, Sparsemax

#: Every map by the name that configurations, command lines and JSON use; the functions have the same names.
VALUES: dict[str, type[MapValue]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "entmax": Entmax,
    "normmax": Normmax,
    "budget_sparsemax": BudgetSparsemax,
    "tvmax": TV,
    "mean": Mean,
    "gate": Gate,
    "inverse": Inverse,
    "sinkhorn": Sinkhorn,
}
_NAMES = {kind: name for name, kind in VALUES.items()}
_OF_FUNCTION: dict[Any, type[MapValue]] = {kind.function: kind for kind in VALUES.values()}
_NEEDED = {kind: {field.name for field in fields(kind) if field.default is MISSING} for kind in VALUES.values()}
_DEFAULT = {function: kind() for function, kind in _OF_FUNCTION.items() if not _NEEDED[kind]}
_NAME = re.compile(r"([a-z_]+)(?:-(\d+(?:\.\d+)?))?")


def as_map(map: Any) -> Any:
    """The map as a value, by its simplest name; a callable that is none of regard's maps is returned as it is.

    A module with a method `value`, such as `regard.nn.Entmax`, is asked for its value of now.

    >>> from regard import entmax, sparsemax
    >>> as_map(sparsemax), as_map(functools.partial(entmax, alpha=2)), as_map("entmax-1.3")
    (Sparsemax(), Sparsemax(), Entmax(alpha=1.3))
    """
    if isinstance(map, MapValue):
        return map.simplest()
    if isinstance(map, FunctionType):
        return _DEFAULT.get(map, map)
    if isinstance(map, functools.partial):
        return _of_partial(map)
    if isinstance(map, str):
        return parse_map(map)
    if isinstance(map, type) and issubclass(map, MapValue):
        _check.complain("map", map.__name__, "a map", f"Make one: {map.__name__}(...).", TypeError)
    if (value := getattr(map, "value", None)) is not None and callable(value):
        return as_map(value())
    if not callable(map):
        _check.complain("map", type(map).__name__, "a map", "For example regard.Sparsemax().", TypeError)
    return map


def _of_partial(map: functools.partial[Any]) -> Any:
    """The value of a function with fixed parameters."""
    kind = _OF_FUNCTION.get(map.func) if isinstance(map.func, FunctionType) else None
    keywords = {name: x for name, x in map.keywords.items() if not (name == "dim" and x == -1)}
    if kind is None or map.args or not _complete(kind, keywords):
        return Applied(map.func, map.args, map.keywords)
    return kind(**keywords).simplest()


def _complete(kind: type[MapValue], keywords: dict[str, Any]) -> bool:
    """Whether these are parameters of the value, and all that it must have."""
    return _NEEDED[kind] <= set(keywords) <= set(kind.__match_args__)


def parse_map(name: str) -> MapValue:
    """The map of a name: "sparsemax", "entmax-1.3", "sinkhorn-0.05"; the number is the first parameter.

    >>> parse_map("entmax"), parse_map("normmax-3")
    (Entmax(alpha=1.5), Normmax(alpha=3.0))
    """
    found = _NAME.fullmatch(name)
    kind = VALUES.get(found[1]) if found else None
    if found is None or kind is None or (found[2] and not fields(kind)):
        names = ", ".join(f"{word}-NUMBER" if fields(kind) else word for word, kind in VALUES.items())
        _check.complain("map", repr(name), f"one of {names}", "A number may be left out where it has a default.")
    keywords = {fields(kind)[0].name: float(found[2])} if found[2] else {}
    if not _complete(kind, keywords):
        remedy = f"Write the value itself: regard.{kind.__name__}(...)."
        _check.complain("map", repr(name), "a name that says all parameters", remedy)
    return kind(**keywords).simplest()


def map_name(map: Any) -> str:
    """The name that `parse_map` reads back; of what has none, what it prints as.

    >>> map_name(Entmax(1.3)), map_name(Softmax()), map_name(TV(0.1, (14, 14)))
    ('entmax-1.3', 'softmax', 'TV(gamma=0.1, shape=(14, 14))')
    """
    value = as_map(map)
    if isinstance(value, MapValue):
        changed = {f.name: getattr(value, f.name) for f in fields(value) if _differs(getattr(value, f.name), f.default)}
        name = _NAMES[type(value)]
        if not changed and name != "entmax":
            return name
        first, *others = fields(value)
        number = getattr(value, first.name)
        if not others and isinstance(number, (int, float)):
            return f"{name}-{number:g}"
    return getattr(value, "__name__", repr(value))


def _differs(x: Any, default: Any) -> bool:
    return isinstance(x, Tensor) or default is MISSING or x != default


def entmax_order(map: Any) -> float | None:
    """The alpha of softmax, sparsemax or entmax with a number, given as a value; None for any other map."""
    if isinstance(map, Softmax):
        return 1.0
    if isinstance(map, Sparsemax):
        return 2.0
    return float(map.alpha) if isinstance(map, Entmax) and not isinstance(map.alpha, Tensor) else None
