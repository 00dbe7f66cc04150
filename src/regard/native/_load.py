"""Finding and loading the libraries of the kernels: one file per variant, beside this one."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from pathlib import Path

import torch

from regard.native._signatures import INTERFACE

#: Every variant, the widest last: the baseline of the architecture, x86-64-v3 and x86-64-v4.
VARIANTS = ("baseline", "avx2", "avx512")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
OPENMP = re.compile(r"lib[gi]?omp[-.\d]")  # GNU's, Intel's, LLVM's


def path_of(variant: str) -> Path:
    """The file of a variant, which need not exist."""
    return Path(__file__).with_name(f"_kernels_{variant}{SUFFIX}")


def variants() -> tuple[str, ...]:
    """The variants that were built and that the processor supports, the widest last."""
    try:
        level: int = load(path_of("baseline")).regard_level()
    except OSError:
        return ()
    return tuple(name for name in VARIANTS[: level + 1] if path_of(name).exists())


def load(path: Path) -> ctypes.CDLL:
    """The library in a file; an OSError with the reason if it cannot be loaded, or is of another release."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        if sys.platform == "win32":
            raise
        _share_openmp()
        library = ctypes.CDLL(str(path))
    version = getattr(library, "regard_version", int)()
    if version != INTERFACE:
        raise OSError(f"{path.name} has interface {version}, and this release of regard needs {INTERFACE}")
    return library


def _share_openmp() -> None:
    """Load torch's OpenMP with RTLD_GLOBAL, so that the kernels find it; torch does that itself on most systems.

    The kernels are not linked to an OpenMP: a second one in a process would start threads beside torch's.
    """
    maps, torch_folder = Path("/proc/self/maps"), Path(torch.__file__).parent
    lines = maps.read_text().splitlines() if maps.exists() else []
    loaded = [name for line in lines if OPENMP.match(Path(name := line.split(maxsplit=5)[-1]).name)]
    of_torch = [
        name
        for name in loaded
        if Path(name).is_relative_to(torch_folder) or torch_folder.name + ".libs" in Path(name).parts
    ]
    for name in (*of_torch, *loaded, str(torch_folder / "lib/libomp.dylib")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return
