"""Fused kernels for CPUs, in C++ behind a plain C interface; loaded at first use, and missed by nobody if absent.

Set the environment variable REGARD_NATIVE to 0 to go without them, or to the path of another build.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 5


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
    return type(x) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def suffix(x: Tensor) -> str:
    """How the kernels for the dtype of x are called."""
    return "f32" if x.dtype == torch.float32 else "f64"


@functools.cache
def _finite() -> Callable[..., int] | None:
    found = library()
    if found is None:
        return None
    function = found.regard_finite_f32
    function.argtypes = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    return function


def surely_finite(x: Tensor) -> bool:
    """True if every number in the memory of x is finite; False if not, or if that cannot be told quickly."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or not _real(x) or (function := _finite()) is None:
        return False
    memory = x.untyped_storage()
    size = memory.nbytes() // 4
    return size == x.numel() and function(memory.data_ptr(), size, torch.get_num_threads()) == 1


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
