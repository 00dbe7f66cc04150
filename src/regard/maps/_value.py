"""Maps as values: a function and its parameters in one small, frozen object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from torch import Tensor

from regard import _check
from regard._repr import named, shown


@dataclass(frozen=True, eq=False, repr=False)
class MapValue:
    """A map with its parameters. Two are equal when their parameters are; tensors are compared by identity.

    Calling it is calling its function: `value(s, dim=-1, mask=None)`.
    """

    function: ClassVar[Callable[..., Any]]
    __match_args__: ClassVar[tuple[str, ...]]  # the names of the parameters, which a dataclass lists here
    name_defaults: ClassVar[Mapping[str, Any]] = {}  # of a name without a number, for parameters without default
    competes: ClassVar[bool] = True  # whether the entries of a row share a fixed total, so that a sink takes from it

    def __call__(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights with the shape of `s`, a distribution along `dim`."""
        weights: Tensor = type(self).function(s, dim=dim, mask=mask, **self.parameters)
        return weights

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in type(self).__match_args__}

    @property
    def couples_rows(self) -> bool:
        """Whether all rows are needed at once, because a parameter differs between them."""
        tensors = (x for x in self.parameters.values() if isinstance(x, Tensor))
        return any(x.dim() > 1 and x.shape[-2] > 1 for x in tensors)

    def with_parameters(self, **changed: Any) -> MapValue:
        """The same map with other values of some parameters."""
        return replace(self, **changed)

    def with_sink(self) -> MapValue:
        """The same map for rows with one more score in front, that of a sink (4.8)."""
        if not self.competes:
            expected = "a map whose weights share a fixed total in each row alone"
            _check.complain("sink", f"one with {self!r}", expected, "Use softmax, sparsemax, entmax, or no sink.")
        return self

    def simplest(self) -> MapValue:
        """The same map in its simplest form: entmax with alpha 2 is sparsemax."""
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MapValue) or type(self) is not type(other):
            return False
        if self.parameters.keys() != other.parameters.keys():
            return False
        return all(_same(x, other.parameters[name]) for name, x in self.parameters.items())

    def __hash__(self) -> int:
        return hash((type(self), *(id(x) if isinstance(x, Tensor) else x for x in self.parameters.values())))

    def __repr__(self) -> str:
        return shown(self, self.parameters)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Applied(MapValue):
    """Any callable with fixed arguments, as from `functools.partial`, for which there is no other value."""

    of: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def __call__(self, s: Tensor, dim: int | None = None, mask: Tensor | None = None) -> Any:
        """The result of the callable; `dim` is passed on unless it is None."""
        axis = {} if dim is None else {"dim": dim}
        return self.of(*self.arguments, s, mask=mask, **axis, **self.keywords)

    @property
    def parameters(self) -> dict[str, Any]:
        """The fixed keywords."""
        return self.keywords

    @property
    def couples_rows(self) -> bool:
        """Whether the callable says so, or a parameter differs between rows."""
        return bool(getattr(self.of, "couples_rows", False)) or super().couples_rows

    def with_parameters(self, **changed: Any) -> MapValue:
        """The same callable with other values of some keywords."""
        return Applied(self.of, self.arguments, self.keywords | changed)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Applied) and self.of is other.of and self.arguments == other.arguments
        return same and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.of, self.arguments, *sorted(self.keywords)))

    def __repr__(self) -> str:
        return f"{getattr(self.of, '__name__', repr(self.of))}({named(self.keywords)})"


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b))
