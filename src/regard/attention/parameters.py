"""The tensors inside affinities and maps, which a gradient has to reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import Any

from torch import Tensor

from regard.maps._value import Applied, MapValue


@dataclass(frozen=True)
class Parameters:
    """The tensors inside objects such as affinities and maps, and how to rebuild the objects with other tensors."""

    tensors: tuple[Tensor, ...]
    complete: bool  # False where an object may have tensors that cannot be found
    objects: tuple[Any, ...]

    @classmethod
    def of(cls, *objects: Any) -> Parameters:
        """Those of dataclasses, also inside each other, and of map values; other objects are opaque."""
        tensors = [x for thing in objects for x in _tensors(thing)]
        return cls(tuple(tensors), all(_transparent(thing) for thing in objects), objects)

    def rebuilt(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The objects with `tensors` in place of their own, in the same order."""
        if not self.tensors:
            return self.objects
        rest = iter(tensors)
        return tuple(_with_tensors(thing, rest) for thing in self.objects)


def _tensors(thing: Any) -> Iterator[Tensor]:
    """The tensors of a thing, depth first."""
    for x in _items(thing).values():
        if isinstance(x, Tensor):
            yield x
        elif _has_parts(x):
            yield from _tensors(x)


def _with_tensors(thing: Any, rest: Iterator[Tensor]) -> Any:
    """The thing with the next tensors of `rest` in place of its own."""
    changed: dict[str, Any] = {}
    for name, x in _items(thing).items():
        if isinstance(x, Tensor):
            changed[name] = next(rest)
        elif _has_parts(x) and (new := _with_tensors(x, rest)) is not x:
            changed[name] = new
    if not changed:
        return thing
    return thing.with_parameters(**changed) if isinstance(thing, MapValue) else replace(thing, **changed)


def _has_parts(x: Any) -> bool:
    """Whether it is a dataclass inside another, as an affinity that wraps one."""
    return is_dataclass(x) and not isinstance(x, type)


def _items(thing: Any) -> dict[str, Any]:
    if isinstance(thing, MapValue):
        return thing.parameters
    if is_dataclass(thing):
        return {f.name: getattr(thing, f.name) for f in fields(thing)}
    return {}


def _transparent(thing: Any) -> bool:
    """Whether all that a thing depends on is in its items: a dataclass or a plain function of regard."""
    if isinstance(thing, Applied):
        known = not thing.arguments and _is_plain(thing.of)
    elif is_dataclass(thing):
        known = type(thing).__module__.startswith("regard.")
    else:
        known = _is_plain(thing)
    return known and all(
        x is None or isinstance(x, (Tensor, int, float, str, tuple)) or (_has_parts(x) and _transparent(x))
        for x in _items(thing).values()
    )


def _is_plain(function: Any) -> bool:
    """A function of regard's that closes over nothing."""
    return isinstance(function, FunctionType) and function.__module__.startswith("regard.") and not function.__closure__
