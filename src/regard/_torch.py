"""Every name of torch that torch does not promise to keep is used here, and nowhere else.

Each has a fallback for a release that lacks it, chosen so that results stay right: the general path is taken, which is
slower and does not look at values. A test looks for private names in all other files, and runs the fallbacks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


@functools.cache
def _private(owner: Any, *path: str) -> Any:
    """A private function or class, or None where this torch has no such thing."""
    for name in path:
        owner = getattr(owner, name, None)
    return owner


def in_transform(x: Tensor) -> bool:
    """Whether `x` is inside a `torch.func` transform such as vmap or grad; its values cannot be read then.

    Fallback: every tensor is taken to be inside one, as soon as a transform may be running.
    """
    asked = _private(torch._C, "_functorch", "is_functorch_wrapped_tensor")
    return bool(asked(x)) if asked is not None else transforming()


def transforming() -> bool:
    """Whether a `torch.func` transform is running. Fallback: yes, so that the general path is taken."""
    asked = _private(torch._C, "_are_functorch_transforms_active")
    return bool(asked()) if asked is not None else True


def forward_mode() -> bool:
    """Whether forward-mode derivatives are being taken. Fallback: yes, so that ordinary operations are used."""
    level = getattr(forward_ad, "_current_level", None)
    return level >= 0 if isinstance(level, int) else True


def without_values(x: Tensor) -> bool:
    """Whether `x` has a shape and no numbers: a tensor on the meta device, or a fake one of a compiler.

    Fallback: only the meta device is known.
    """
    if x.is_meta:
        return True
    kind = _private(torch, "_subclasses", "FakeTensor") if type(x) is not Tensor else None
    return kind is not None and isinstance(x, kind)


def autocasting(device: torch.device) -> bool:
    """Whether operations on a device are cast to half precision; on the meta device torch refuses the question."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Operations on `x` keep their dtype inside; there is nothing to switch off on the meta device."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def exporting() -> bool:
    """Whether a graph for all sizes is being made."""
    return bool(torch.compiler.is_exporting())


def foreach(name: str, tensors: Sequence[Tensor], *others: Any, **more: Any) -> Any:
    """One operation on many tensors in few launches, `torch._foreach_<name>`. Fallback: one tensor after the other.

    Lists among the `others` are taken apart, one entry for each tensor.

    >>> foreach("mul", [torch.ones(2), torch.ones(1)], [2.0, 3.0])
    [tensor([2., 2.]), tensor([3.])]
    """
    at_once = _private(torch, f"_foreach_{name}")
    if at_once is not None:
        return list(made) if (made := at_once(tensors, *others, **more)) is not None else None
    given = list(others)
    if name.startswith("addc") and len(given) == 3:  # a single tensor takes its factor by name
        more["value"] = given.pop()
    made = []
    for place, x in enumerate(tensors):
        own = [other[place] if isinstance(other, (list, tuple)) else other for other in given]
        named = {key: value[place] if isinstance(value, (list, tuple)) else value for key, value in more.items()}
        made.append(getattr(x, name)(*own, **named))
    return made
