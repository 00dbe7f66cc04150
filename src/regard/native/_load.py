"""Finding and loading the libraries of the kernels: one file for each variant, beside this one."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from pathlib import Path

import torch

from regard.native._signatures import INTERFACE

#: Every variant that there can be, the widest last: what all processors of a kind have, x86-64-v3 and x86-64-v4.
VARIANTS = ("baseline", "avx2", "avx512")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
OPENMP = re.compile(r"lib[gi]?omp[-.\d]")  # GNU's, Intel's, LLVM's


def path_of(variant: str) -> Path:
    """The file of a variant, whether it is there or not."""
    return Path(__file__).with_name(f"_kernels_{variant}{SUFFIX}")


def variants() -> tuple[str, ...]:
    """The variants that are here and that this processor can run, the widest last; none where nothing was built."""
    try:
        level: int = load(path_of("baseline")).regard_level()
    except OSError:
        return ()
    return tuple(name for name in VARIANTS[: level + 1] if path_of(name).exists())


def load(path: Path) -> ctypes.CDLL:
    """The library in a file; an OSError that says why if it is none, or is of another release."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        if sys.platform == "win32":
            raise
        _lend_threads()
        library = ctypes.CDLL(str(path))
    version = getattr(library, "regard_version", int)()
    if version != INTERFACE:
        raise OSError(f"{path.name} has interface {version}, and this release of regard needs {INTERFACE}")
    return library


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
