"""Builds the native kernels where there is a C++ compiler; without one the package is as good, and slower.

They are plain shared libraries that ctypes loads: no header of Python, none of its tags in their names, and a wheel for
any Python 3. The same sources are compiled once for each variant, and the processor decides which is loaded.
"""

import os
import platform
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE, LIBRARY = Path("src/regard/native"), "_kernels_"
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
# -fwrapv is what most builds of Python ask for; without it GCC 12 makes code that takes a third more time on long rows.
FLAGS = (
    "-O3 -g0 -std=c++17 -fvisibility=hidden -fwrapv -fno-lto -fno-math-errno -fno-trapping-math -fno-sized-deallocation"
)
QUIET = "-Wno-psabi -Wno-pass-failed"  # how vectors are passed does not matter where all is inlined
# What a variant may use is what regard_level in checks.cpp asks the processor for.
AVX2 = "-mavx2 -mfma -mbmi -mbmi2 -mpopcnt"
AVX512 = f"{AVX2} -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl"
VARIANTS = {"baseline": "", "avx2": AVX2, "avx512": AVX512}
# Threads are those of the OpenMP that torch has loaded, so nothing is linked: see docs/contributing.md.
THREADS = ["-Xpreprocessor -fopenmp" if sys.platform == "darwin" else "-fopenmp", "-fopenmp-simd", ""]

MICROSOFT = "/O2 /std:c++17 /EHsc /Zc:preprocessor"
MICROSOFT_VARIANTS = {"baseline": "", "avx2": "/arch:AVX2", "avx512": "/arch:AVX512"}
MICROSOFT_THREADS = ["/openmp", ""]

if sys.platform == "darwin":  # one architecture, also where Python has two
    os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")


class Kernels(build_ext):
    """Libraries with plain names, and no failure when one cannot be built."""

    def build_extension(self, ext):
        """With OpenMP, else without, else not at all."""
        variant, folder = ext.name.rpartition(LIBRARY)[2], self.build_temp
        microsoft = self.compiler.compiler_type == "msvc"
        flags, threads = (MICROSOFT, MICROSOFT_THREADS) if microsoft else (f"{FLAGS} {QUIET}", THREADS)
        flags = [*flags.split(), *(MICROSOFT_VARIANTS if microsoft else VARIANTS)[variant].split()]
        self.build_temp = os.path.join(folder, variant)
        reason = None
        for openmp in threads:
            ext.extra_compile_args = [*flags, *openmp.split()]
            try:
                super().build_extension(ext)
                self.check(ext)
                return
            except Exception as error:
                reason = error
            finally:
                self.build_temp = folder
        text = f"regard: no native kernels for {variant} ({reason}); everything works without them, more slowly"
        print(text, file=sys.stderr)

    def check(self, ext):
        """On Linux torch brings GNU's OpenMP; a library made for that of LLVM could not be loaded."""
        built = Path(self.get_ext_fullpath(ext.name))
        if sys.platform == "linux" and b"__kmpc_fork_call" in built.read_bytes():
            built.unlink()
            raise RuntimeError("it needs the OpenMP of LLVM")

    def get_ext_filename(self, fullname):
        """Without the name of a Python."""
        return os.path.join(*fullname.split(".")) + SUFFIX

    def get_export_symbols(self, ext):
        """None: there is no module to initialise."""
        return []


class Wheel(bdist_wheel):
    """For any Python 3: on this platform with kernels, on every platform without."""

    def get_tag(self):
        """What was built decides, so it is asked for late."""
        system = super().get_tag()[2].replace("universal2", platform.machine())
        built = any(Path(self.bdist_dir).rglob(f"{LIBRARY}*{SUFFIX}"))
        self.root_is_pure = not built
        return "py3", "none", system if built else "any"


def variants():
    """Those that can be built here, and none if REGARD_NATIVE is 0."""
    if os.environ.get("REGARD_NATIVE") == "0":
        return []
    wide = platform.machine().lower() in ("x86_64", "amd64") and sys.platform in ("linux", "win32")
    return list(VARIANTS) if wide else ["baseline"]


def kernels(variant):
    """The library of a variant. The version of its interface is stated in the table of signatures, and only there."""
    sources, headers = (sorted(str(path) for path in NATIVE.glob(f"*.{kind}")) for kind in ("cpp", "h"))
    table = str(NATIVE / "_signatures.py")
    version = runpy.run_path(table)["INTERFACE"]
    return Extension(
        f"regard.native.{LIBRARY}{variant}",
        sources,
        define_macros=[("REGARD_INTERFACE", str(version))],
        depends=[*headers, table, "setup.py"],
        optional=True,
    )


setup(
    ext_modules=[kernels(variant) for variant in variants()],
    cmdclass={"build_ext": Kernels, "bdist_wheel": Wheel},
)
