"""Fused kernels for CPUs, in C++ behind a plain C interface; loaded at first use, and missed by nobody if absent.

Set the environment variable REGARD_NATIVE to 0 to go without them, or to the path of another build.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._torch import in_transform

VERSION = 6


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they were not built, are switched off, or are of another release."""
    wish = os.environ.get("REGARD_NATIVE", "")
    if wish == "0":
        return None
    for path in [Path(wish)] if wish else sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            found = ctypes.CDLL(str(path))
            if found.regard_version() == VERSION:
                return found
        except (OSError, AttributeError):
            continue
    return None


def native_kernels() -> str:
    """Say whether the native kernels are on, and where they are.

    >>> native_kernels().split(":")[0] in ("on", "off")
    True
    """
    found = library()
    if found is None:
        return "off: not built, or REGARD_NATIVE=0; plain PyTorch does the work"
    return f"on: {Path(found._name).name}"


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can take these: real CPU tensors of one dtype, float32 or float64."""
    dtype = tensors[0].dtype
    return (
        dtype in (torch.float32, torch.float64)
        and all(x.dtype == dtype and x.device.type == "cpu" and _real(x) for x in tensors)
        and library() is not None
    )


def _real(x: Tensor) -> bool:
    """Neither a fake nor a wrapped tensor: its memory can be given away."""
    return type(x) in (Tensor, torch.nn.Parameter) and not in_transform(x)


def suffix(x: Tensor) -> str:
    """How the kernels for the dtype of x are called."""
    return "f32" if x.dtype == torch.float32 else "f64"


# The bits above those of every finite number, and how bits without the sign become a Python number.
_FLOATS: dict[torch.dtype, tuple[int, Callable[[int], float]]] = {
    torch.float16: (0x7C00, lambda bits: struct.unpack("<e", bits.to_bytes(2, "little"))[0]),
    torch.bfloat16: (0x7F80, lambda bits: struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]),
    torch.float32: (0x7F800000, lambda bits: struct.unpack("<f", bits.to_bytes(4, "little"))[0]),
    torch.float64: (0x7FF0000000000000, lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0]),
}
_Three = ctypes.c_int64 * 3


@functools.cache
def _largest() -> Callable[..., int] | None:
    found = library()
    if found is None:
        return None
    function = found.regard_largest
    function.argtypes = ctypes.c_void_p, ctypes.c_int, _Three, _Three, ctypes.c_int64, ctypes.c_int
    function.restype = ctypes.c_int64
    return function


def largest(x: Tensor) -> float | None:
    """The largest absolute entry of a tensor that is not empty: infinity if one is NaN or infinite.

    One pass that only reads. None where there is no kernel for x: another device or dtype, or rows that are not whole.
    """
    if x.dtype not in _FLOATS or x.device.type != "cpu" or not _real(x) or library() is None:
        return None
    function, first_infinite = _largest(), _FLOATS[x.dtype][0]
    assert function is not None
    size, memory = x.element_size(), x.untyped_storage()
    if memory.nbytes() == size * x.numel():  # in whatever order, it is all of this memory
        start, count, step, width = memory.data_ptr(), [1, 1, 1], [0, 0, 0], x.numel()
    elif 0 < x.dim() <= 4 and x.stride(-1) == 1:
        start, width, missing = x.data_ptr(), x.shape[-1], [1] * (4 - x.dim())
        step = [*missing, *x.stride()[:-1]]
        # What is repeated (a step of zero) is looked at once.
        count = [n if s else 1 for n, s in zip([*missing, *x.shape[:-1]], step, strict=True)]
    else:
        return None
    bits = function(start, size, _Three(*count), _Three(*step), width, torch.get_num_threads())
    return math.inf if bits >= first_infinite else _FLOATS[x.dtype][1](bits)


def call(name: str, *arguments: Any) -> int:
    """Run a kernel. Tensors are passed as their contiguous memory, whole numbers and floats as they are."""
    found = library()
    assert found is not None
    given: list[Any] = []
    for x in arguments:
        if isinstance(x, Tensor):
            assert x.is_contiguous()
            given.append(ctypes.c_void_p(x.data_ptr()))
        else:
            given.append(ctypes.c_double(x) if isinstance(x, float) else ctypes.c_int64(x))
    return int(getattr(found, name)(*given, ctypes.c_int(torch.get_num_threads())))
