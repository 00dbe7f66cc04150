"""Fused kernels for CPUs, in C++ behind a plain C interface; loaded at first use, and missed by nobody if absent.

They are built in variants for the instructions that processors have, and the widest that this one can run is taken. The
environment variable REGARD_NATIVE asks for another: 0 for none, the name of a variant, or the path of another build.
What is asked for and cannot be had is an error at first use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem
from regard._torch import in_transform

VERSION = 7
#: Every variant that there can be, the widest last: what all processors of a kind have, x86-64-v3 and x86-64-v4.
VARIANTS = ("baseline", "avx2", "avx512")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
OPENMP = re.compile(r"lib[gi]?omp[-.\d]")  # GNU's, Intel's, LLVM's


def _path(variant: str) -> Path:
    return Path(__file__).with_name(f"_kernels_{variant}{SUFFIX}")


def _load(path: Path) -> ctypes.CDLL:
    """The library in a file; an OSError that says why if it is none, or is of another release."""
    try:
        found = ctypes.CDLL(str(path))
    except OSError:
        if sys.platform == "win32":
            raise
        _lend_threads()
        found = ctypes.CDLL(str(path))
    version = getattr(found, "regard_version", int)()
    if version != VERSION:
        raise OSError(f"{path.name} has interface {version}, and this release of regard needs {VERSION}")
    return found


def _lend_threads() -> None:
    """Make the OpenMP that torch has loaded known to all libraries; torch does that itself on most systems.

    The kernels name none of their own: a second one in a process would have threads of its own beside torch's.
    """
    maps, own = Path("/proc/self/maps"), Path(torch.__file__).parent
    lines = maps.read_text().splitlines() if maps.exists() else []
    loaded = [name for line in lines if OPENMP.match(Path(name := line.split(maxsplit=5)[-1]).name)]
    of_torch = [name for name in loaded if Path(name).is_relative_to(own) or own.name + ".libs" in Path(name).parts]
    for name in (*of_torch, *loaded, str(own / "lib/libomp.dylib")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return


def variants() -> tuple[str, ...]:
    """The variants that are here and that this processor can run, the widest last; none where nothing was built."""
    try:
        level = _load(_path("baseline")).regard_level()
    except OSError:
        return ()
    return tuple(name for name in VARIANTS[: level + 1] if _path(name).exists())


def _refuse(wish: str, expected: str, remedy: str = "Unset it to take what suits this machine.") -> Problem:
    return Problem(f"REGARD_NATIVE: got {wish!r}, expected {expected}. {remedy}")


def _wished(wish: str) -> ctypes.CDLL:
    """The variant of this name or the library in this file, or a complaint."""
    here = variants()
    if wish in VARIANTS and wish not in here:
        which = "this processor can run" if _path(wish).exists() else "was built"
        raise _refuse(wish, f"one that {which} ({', '.join(here) or 'there is none'})")
    path = _path(wish) if wish in VARIANTS else Path(wish)
    if not path.is_file():
        raise _refuse(wish, f"0, {', '.join(VARIANTS)} or the path of a library")
    try:
        return _load(path)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise _refuse(wish, f"a library of these kernels ({reason})", "Build it again, or unset it.") from error


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they were not built, cannot be loaded, or are switched off."""
    wish = os.environ.get("REGARD_NATIVE", "")
    if wish == "0":
        return None
    if wish:
        return _wished(wish)
    for name in reversed(variants()):
        with contextlib.suppress(OSError):
            return _load(_path(name))
    return None


def native_kernels() -> str:
    """Say whether the native kernels are on, which variant of them, and what else could be had here.

    >>> native_kernels().split(":")[0] in ("on", "off")
    True
    """
    try:
        found = library()
    except Problem as problem:
        return f"refused: {problem}"
    if found is not None:
        path, here = Path(found._name), variants()
        name = next((name for name in here if _path(name) == path), None)
        return f"on: {path.name}" if name is None else f"on: {name} (of {', '.join(here)})"
    return f"off: {_reason()}; plain PyTorch does the work"


def _reason() -> str:
    """Why there are none."""
    if os.environ.get("REGARD_NATIVE") == "0":
        return "REGARD_NATIVE=0"
    if not _path("baseline").exists():
        return "not built"
    try:
        _load(_path("baseline"))
    except OSError as error:
        return " ".join(str(error).split())
    return "switched off"


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


# Bytes, the bits above those of every finite number, and how bits without the sign become a Python number.
_FLOATS: dict[torch.dtype, tuple[int, int, Callable[[int], float]]] = {
    torch.float16: (2, 0x7C00, lambda bits: struct.unpack("<e", bits.to_bytes(2, "little"))[0]),
    torch.bfloat16: (2, 0x7F80, lambda bits: struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]),
    torch.float32: (4, 0x7F800000, lambda bits: struct.unpack("<f", bits.to_bytes(4, "little"))[0]),
    torch.float64: (8, 0x7FF0000000000000, lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0]),
}
_Three = ctypes.c_int64 * 3
_ONCE, _NOWHERE = _Three(1, 1, 1), _Three(0, 0, 0)


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
    if (kind := _FLOATS.get(x.dtype)) is None or not x.is_cpu or not _real(x) or library() is None:
        return None
    function, (size, first_infinite, number) = _largest(), kind
    assert function is not None
    # At a few hundred keys every call of torch is felt: as few as possible in the usual case.
    if x.is_contiguous():
        start, count, step, width = x.data_ptr(), _ONCE, _NOWHERE, x.numel()
    elif (memory := x.untyped_storage()).nbytes() == size * x.numel():  # in whatever order, it is all of this memory
        start, count, step, width = memory.data_ptr(), _ONCE, _NOWHERE, x.numel()
    elif 0 < x.dim() <= 4 and x.stride(-1) == 1:
        start, width, missing = x.data_ptr(), x.shape[-1], [1] * (4 - x.dim())
        steps = [*missing, *x.stride()[:-1]]
        # What is repeated (a step of zero) is looked at once.
        counts = [n if s else 1 for n, s in zip([*missing, *x.shape[:-1]], steps, strict=True)]
        count, step = _Three(*counts), _Three(*steps)
    else:
        return None
    bits = function(start, size, count, step, width, torch.get_num_threads())
    return math.inf if bits >= first_infinite else number(bits)


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
