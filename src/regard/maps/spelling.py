"""The one place that turns every spelling of a map into a value: a value, a function, a partial, a name, a callable.

`Sparsemax()`, `sparsemax`, `functools.partial(entmax, alpha=2)`, `Entmax(2.0)` and "sparsemax" are one map.
Algorithms are chosen by the value that `as_map` returns, so that a spelling never decides how something is computed.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from decimal import Decimal
from types import FunctionType
from typing import Any

from torch import Tensor

from regard import _check
from regard._partial import Bound, bound_of
from regard.maps._value import Applied, MapValue
from regard.maps.budget_sparsemax import BudgetSparsemax
from regard.maps.entmax import Entmax, Softmax, Sparsemax
from regard.maps.gates import Gate, Inverse
from regard.maps.mean import Mean
from regard.maps.normmax import Normmax
from regard.maps.sinkhorn import Sinkhorn
from regard.maps.tvmax import TVmax

MAP_VALUES: tuple[type[MapValue], ...] = (
    *(Softmax, Sparsemax, Entmax),
    *(Normmax, BudgetSparsemax, TVmax),
    *(Mean, Gate, Inverse),
    Sinkhorn,
)
#: Every map by the name that configurations, command lines and JSON use: the name of its function.
VALUES: dict[str, type[MapValue]] = {kind.function.__name__: kind for kind in MAP_VALUES}
_NAMES = {kind: name for name, kind in VALUES.items()}
_OF_FUNCTION: dict[Any, type[MapValue]] = {kind.function: kind for kind in VALUES.values()}
_NEEDED = {kind: {field.name for field in fields(kind) if field.default is MISSING} for kind in VALUES.values()}
_DEFAULT = {function: kind() for function, kind in _OF_FUNCTION.items() if not _NEEDED[kind]}
_NAME = re.compile(r"([a-z_]+)(?:-(\d+(?:\.\d+)?))?")


def as_map(map: Any) -> Any:
    """The map as a value, by its simplest name; a callable that is none of regard's maps is returned as it is.

    Of a module with a method `value`, such as `regard.nn.Entmax`, it is the current value.

    >>> from functools import partial
    >>> from regard import entmax, sparsemax
    >>> as_map(sparsemax), as_map(partial(entmax, alpha=2)), as_map("entmax-1.3")
    (Sparsemax(), Sparsemax(), Entmax(alpha=1.3))
    """
    if isinstance(map, MapValue):
        return map.simplest()
    if isinstance(map, FunctionType):
        return _DEFAULT.get(map, map)
    if (bound := bound_of(map)) is not None:
        return _of_partial(bound)
    if isinstance(map, str):
        return parse_map(map)
    if isinstance(map, type) and issubclass(map, MapValue):
        _check.complain("map", map.__name__, "a map", f"Make one: {map.__name__}(...).", TypeError)
    if (value := getattr(map, "value", None)) is not None and callable(value):
        return as_map(value())
    if not callable(map):
        _check.complain("map", type(map).__name__, "a map", "For example regard.Sparsemax().", TypeError)
    return map


def _of_partial(call: Bound) -> Any:
    """The value of a function with fixed parameters."""
    kind = _OF_FUNCTION.get(call.function) if isinstance(call.function, FunctionType) else None
    keywords = {name: x for name, x in call.keywords.items() if not (name == "dim" and x == -1)}
    if kind is None or call.arguments or not _complete(kind, keywords):
        return Applied(*call)
    return kind(**keywords).simplest()


def _complete(kind: type[MapValue], keywords: dict[str, Any]) -> bool:
    """Whether these are parameters of the value, with all that have no default."""
    return _NEEDED[kind] <= set(keywords) <= set(kind.__match_args__)


def parse_map(name: str, shape: tuple[int, int] | None = None) -> MapValue:
    """The map of a name: "sparsemax", "entmax-1.3", "sinkhorn-0.05"; the number is the first parameter.

    "tvmax-0.3" needs the `shape` (height, width) of its grid; without a number its gamma is 0.1.

    >>> parse_map("entmax"), parse_map("normmax-3"), parse_map("tvmax", (14, 14))
    (Entmax(alpha=1.5), Normmax(alpha=3.0), TVmax(gamma=0.1, shape=(14, 14)))
    """
    parts = _NAME.fullmatch(name)
    kind = VALUES.get(parts[1]) if parts else None
    if parts is None or kind is None or (parts[2] and not kind.__match_args__):
        names = ", ".join(f"{word} or {word}-NUMBER" if kind.__match_args__ else word for word, kind in VALUES.items())
        _check.complain("map", repr(name), f"one of {names}", "Or pass a value such as regard.Entmax(1.3).")
    keywords = dict(kind.name_defaults)
    if parts[2]:
        keywords[kind.__match_args__[0]] = float(parts[2])
    if "shape" in kind.__match_args__:
        if shape is None:
            remedy = "Write regard.TVmax(gamma, (height, width))."
            _check.complain("map", repr(name), "the shape of a grid beside it", remedy)
        keywords["shape"] = shape
    return kind(**keywords).simplest()


def map_name(map: Any) -> str:
    """The name that `parse_map` reads back as the same map; where there is none, the name or repr of the callable.

    >>> map_name(Entmax(1.3)), map_name(Entmax(1.5)), map_name(Entmax(1.0)), map_name(TVmax(0.3, (14, 14)))
    ('entmax-1.3', 'entmax', 'softmax', 'tvmax-0.3')
    """
    value = as_map(map)
    if isinstance(value, MapValue) and type(value) in _NAMES:
        name = _NAMES[type(value)]
        default = {field.name: field.default for field in fields(value)} | dict(value.name_defaults)
        named = {key: x for key, x in value.parameters.items() if key != "shape"}  # the shape is no part of a name
        changed = [key for key, x in named.items() if isinstance(x, Tensor) or x != default[key]]
        if not changed:
            return name
        number = getattr(value, changed[0])
        if changed == [type(value).__match_args__[0]] and isinstance(number, (int, float)):
            return name + number_suffix(number)
    return getattr(value, "__name__", repr(value))


def number_suffix(number: float) -> str:
    """The suffix of a name for a number, in digits that `float` reads as the same number.

    >>> number_suffix(1.3), number_suffix(1e-5), number_suffix(2.0)
    ('-1.3', '-0.00001', '-2')
    """
    return "-" + format(Decimal(repr(float(number))), "f").removesuffix(".0")
