"""Private names of torch are used here, and nowhere else.

Each has a fallback for a release without it that keeps results right: the general path, which is slower and reads no
values. A test looks for private names in all other files, and runs the fallbacks.
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

    Fallback: True for every tensor while a transform may be running.
    """
    is_wrapped = _private(torch._C, "_functorch", "is_functorch_wrapped_tensor")
    return bool(is_wrapped(x)) if is_wrapped is not None else transforming()


def transforming() -> bool:
    """Whether a `torch.func` transform is running. Fallback: True, which takes the general path."""
    are_active = _private(torch._C, "_are_functorch_transforms_active")
    return bool(are_active()) if are_active is not None else True


def has_storage(x: Tensor) -> bool:
    """Whether `x` has memory: not in the vmap of `torch.autograd.grad(..., is_grads_batched=True)`, which is not of
    `torch.func`. Fallback: by asking for its address."""
    known = _private(torch._C, "_has_storage")
    if known is not None:
        return bool(known(x))
    try:
        x.data_ptr()
    except RuntimeError:
        return False
    return True


def forward_mode() -> bool:
    """Whether forward-mode differentiation is on. Fallback: True, which uses ordinary operations."""
    level = getattr(forward_ad, "_current_level", None)
    return level >= 0 if isinstance(level, int) else True


def without_values(x: Tensor) -> bool:
    """Whether `x` has a shape but no values: on the meta device, or a compiler's `FakeTensor`.

    Fallback: only the meta device is recognised.
    """
    if x.is_meta:
        return True
    kind = _private(torch, "_subclasses", "FakeTensor") if type(x) is not Tensor else None
    return kind is not None and isinstance(x, kind)


def with_values() -> AbstractContextManager[Any]:
    """A block in which new tensors have values: on the CPU where modules are being built on the meta device.

    Models are built there to load weights later; what is computed and not loaded needs its numbers at once.
    """
    return torch.device("cpu") if torch.empty(0).is_meta else nullcontext()


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a device; False on the meta device, where torch raises."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast on the device of `x`; nothing to switch off on the meta device."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def exporting() -> bool:
    """Whether `torch.export` is tracing."""
    return bool(torch.compiler.is_exporting())


def foreach(name: str, tensors: Sequence[Tensor], *operands: Any, **options: Any) -> Any:
    """One operation on many tensors in few kernel launches, `torch._foreach_<name>`. Fallback: a loop over the tensors.

    `name`: of the operation, such as "mul" or "add_".
    `tensors`: the first operands.
    `operands`, `options`: the other arguments; a list has one entry per tensor.

    >>> foreach("mul", [torch.ones(2), torch.ones(1)], [2.0, 3.0])
    [tensor([2., 2.]), tensor([3.])]
    """
    fused = _private(torch, f"_foreach_{name}")
    if fused is not None:
        return list(results) if (results := fused(tensors, *operands, **options)) is not None else None
    arguments = list(operands)
    if name.startswith("addc") and len(arguments) == 3:  # the method of one tensor takes its factor by name
        options["value"] = arguments.pop()

    def entry(argument: Any, i: int) -> Any:
        return argument[i] if isinstance(argument, (list, tuple)) else argument

    return [
        getattr(x, name)(*(entry(y, i) for y in arguments), **{key: entry(y, i) for key, y in options.items()})
        for i, x in enumerate(tensors)
    ]
