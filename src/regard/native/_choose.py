"""Choosing the library that is used, by the environment variable REGARD_NATIVE or the processor, and describing it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from regard._problem import Problem
from regard.native import _load

_off: ContextVar[bool] = ContextVar("regard_kernels_off", default=False)


def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they were not built, cannot be loaded, or are switched off."""
    return None if _off.get() else chosen()


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Inside the block plain PyTorch does the work of the kernels, as where none were built.

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
    """The library that REGARD_NATIVE asks for, or else the widest that this processor can run; loaded once."""
    wish = os.environ.get("REGARD_NATIVE", "")
    if wish == "0":
        return None
    if wish:
        return _wished(wish)
    for name in reversed(_load.variants()):
        with contextlib.suppress(OSError):
            return _load.load(_load.path_of(name))
    return None


def native_kernels() -> str:
    """Say whether the native kernels are on, which variant of them, and what else could be had here.

    >>> native_kernels().split(":")[0] in ("on", "off")
    True
    """
    try:
        kernels = library()
    except Problem as problem:
        return f"refused: {problem}"
    if kernels is not None:
        path, here = Path(kernels._name), _load.variants()
        name = next((name for name in here if _load.path_of(name) == path), None)
        return f"on: {path.name}" if name is None else f"on: {name} (of {', '.join(here)})"
    return f"off: {_reason()}; plain PyTorch does the work"


def _reason() -> str:
    """Why there are none."""
    if os.environ.get("REGARD_NATIVE") == "0":
        return "REGARD_NATIVE=0"
    if not _load.path_of("baseline").exists():
        return "not built"
    try:
        _load.load(_load.path_of("baseline"))
    except OSError as error:
        return " ".join(str(error).split())
    return "switched off"


def _wished(wish: str) -> ctypes.CDLL:
    """The variant of this name or the library in this file, or a complaint."""
    here = _load.variants()
    if wish in _load.VARIANTS and wish not in here:
        which = "this processor can run" if _load.path_of(wish).exists() else "was built"
        raise _refusal(wish, f"one that {which} ({', '.join(here) or 'there is none'})")
    path = _load.path_of(wish) if wish in _load.VARIANTS else Path(wish)
    if not path.is_file():
        raise _refusal(wish, f"0, {', '.join(_load.VARIANTS)} or the path of a library")
    try:
        return _load.load(path)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise _refusal(wish, f"a library of these kernels ({reason})", "Build it again, or unset it.") from error


def _refusal(wish: str, expected: str, remedy: str = "Unset it to take what suits this machine.") -> Problem:
    return Problem(f"REGARD_NATIVE: got {wish!r}, expected {expected}. {remedy}")
