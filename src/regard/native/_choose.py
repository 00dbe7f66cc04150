"""The choice of the library, by the environment variable REGARD_NATIVE or the processor, and its description."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from regard._problem import Problem
from regard.gpu import triton_kernels
from regard.native import _load

_off: ContextVar[bool] = ContextVar("regard_kernels_off", default=False)


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None if they were not built, cannot be loaded, or are switched off."""
    return None if _off.get() else chosen()


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Use plain PyTorch instead of the kernels inside the block, as if none were built.

    >>> with switched_off():
    ...     library() is None
    True
    """
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


@functools.cache
def chosen() -> ctypes.CDLL | None:
    """The library that REGARD_NATIVE selects, by default the widest that the processor supports; loaded once."""
    selection = os.environ.get("REGARD_NATIVE", "")
    if selection == "0":
        return None
    if selection:
        return _selected(selection)
    for name in reversed(_load.variants()):
        with contextlib.suppress(OSError):
            return _load.load(_load.path_of(name))
    return None


def variant() -> str | None:
    """The name of the variant in use, None without kernels; a library that was built by hand counts as the widest.

    >>> variant() in (None, "baseline", "avx2", "avx512")
    True
    """
    kernels = library()
    return None if kernels is None else _variant_of(kernels)


@functools.cache
def _variant_of(kernels: ctypes.CDLL) -> str:
    path = Path(kernels._name)
    return next((name for name in _load.VARIANTS if _load.path_of(name) == path), _load.VARIANTS[-1])


def native_kernels() -> str:
    """A text: whether the native kernels are on, which variant, and which others are available; and whether those in
    Triton for GPUs are.

    >>> cpu, gpu = native_kernels().split("; Triton kernels ")
    >>> cpu.split(":")[0] in ("on", "off"), gpu.split(":")[0] in ("on", "off")
    (True, True)
    """
    return f"{cpu_kernels()}; Triton kernels {triton_kernels()}"


def cpu_kernels() -> str:
    """The part of `native_kernels` about CPUs."""
    try:
        kernels = library()
    except Problem as problem:
        return f"refused: {problem}"
    if kernels is not None:
        path, available = Path(kernels._name), _load.variants()
        name = next((name for name in available if _load.path_of(name) == path), None)
        return f"on: {path.name}" if name is None else f"on: {name} (of {', '.join(available)})"
    return f"off: {_reason()}; plain PyTorch does the work"


def _reason() -> str:
    """Why there are no kernels."""
    if os.environ.get("REGARD_NATIVE") == "0":
        return "REGARD_NATIVE=0"
    if not _load.path_of("baseline").exists():
        return "not built"
    try:
        _load.load(_load.path_of("baseline"))
    except OSError as error:
        return " ".join(str(error).split())
    return "switched off"


def _selected(selection: str) -> ctypes.CDLL:
    """The variant of this name or the library in this file; a Problem if it cannot be loaded."""
    available = _load.variants()
    if selection in _load.VARIANTS and selection not in available:
        which = "this processor can run" if _load.path_of(selection).exists() else "was built"
        raise _refusal(selection, f"one that {which} ({', '.join(available) or 'there is none'})")
    path = _load.path_of(selection) if selection in _load.VARIANTS else Path(selection)
    if not path.is_file():
        raise _refusal(selection, f"0, {', '.join(_load.VARIANTS)} or the path of a library")
    try:
        return _load.load(path)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise _refusal(selection, f"a library of these kernels ({reason})", "Build it again, or unset it.") from error


def _refusal(selection: str, expected: str, remedy: str = "Unset it to take what suits this machine.") -> Problem:
    return Problem(f"REGARD_NATIVE: got {selection!r}, expected {expected}. {remedy}")
