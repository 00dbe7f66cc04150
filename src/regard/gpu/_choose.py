"""Whether the Triton kernels run for some tensors: the one place that decides it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem
from regard._torch import in_transform, without_values

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: REGARD_TRITON, and whether Triton is installed, which is not imported for that. Compilers cannot trace the questions.
SETTING = os.environ.get("REGARD_TRITON", "1")
INSTALLED = importlib.util.find_spec("triton") is not None
_REAL = Tensor, torch.nn.Parameter
# The kind of device whose tensors the kernels take. Torch calls NVIDIA's and AMD's both "cuda". None: switched off.
# A list and no ContextVar, which torch.compile does not trace.
_device: list[str | None] = ["cuda"]


@contextlib.contextmanager
def kernels_for(device: str | None) -> Iterator[None]:
    """Use the Triton kernels for tensors on another kind of device inside the block; None: for none.

    On a CPU they need an interpreter of Triton, which the tests have.

    >>> with kernels_for(None):
    ...     usable(torch.zeros(3))
    False
    """
    _device.append(device)
    try:
        yield
    finally:
        _device.pop()


def switched_on() -> bool:
    """Whether Triton is installed, and REGARD_TRITON does not switch it off."""
    if SETTING not in ("0", "1", "tune"):
        raise Problem(f"REGARD_TRITON: got {SETTING!r}, expected 0, 1 or tune. Unset it to use Triton.")
    return SETTING != "0" and INSTALLED


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels take these: on a GPU, float32, float16 or bfloat16, in no transform, with Triton there.

    Tensors of a compiler, which have no values, count as those that they stand for.
    """
    device = _device[-1]
    for x in tensors:
        if device is None or x.device.type != device or x.dtype not in DTYPES:
            return False
        if not torch.compiler.is_compiling() and (type(x) not in _REAL or in_transform(x)) and not without_values(x):
            return False
    return switched_on()


def device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """A block in which kernels are launched on the device of x: Triton takes the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def triton_kernels() -> str:
    """A text: whether the Triton kernels are on, and why not.

    >>> triton_kernels().split(":")[0] in ("on", "off", "refused")
    True
    """
    try:
        on = switched_on()
    except Problem as problem:
        return f"refused: {problem}"
    if not on:
        reason = "REGARD_TRITON=0" if SETTING == "0" else "Triton is not installed"
        return f"off: {reason}; plain PyTorch does the work on GPUs"
    if not torch.cuda.is_available():
        return "off: torch finds no GPU"
    measured = ", measured at first use" if SETTING == "tune" else ""
    return f"on: sparsemax, entmax, attention with them, Sinkhorn, chords of continuous sparsemax, on GPUs{measured}"
