"""Short `repr` of objects: the class and named parts, with each tensor as its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def shown(thing: object, parts: Mapping[str, Any]) -> str:
    """The class of `thing` with named parts.

    >>> import torch
    >>> shown(torch.Size([2]), {"mean": torch.zeros(3, 2), "alpha": 1.5})
    'Size(mean=(3, 2), alpha=1.5)'
    """
    return f"{type(thing).__name__}({named(parts)})"


def named(parts: Mapping[str, Any]) -> str:
    """The parts only, written as keyword arguments."""
    return ", ".join(f"{name}={_part(x)}" for name, x in parts.items())


def _part(x: Any) -> str:
    if isinstance(x, Tensor):
        return str(tuple(x.shape))
    if type(x) is tuple and any(isinstance(y, Tensor) for y in x):
        return f"({', '.join(map(_part, x))})"
    return repr(x)
