"""Builds the native kernels where there is a C++ compiler; without one the package is as good, and slower."""

import os
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-O3", "-g0", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=default"]


class Kernels(build_ext):
    """A plain shared library that ctypes loads: no Python header, and no failure when it cannot be built."""

    def build_extension(self, ext):
        """With OpenMP, else without, else not at all."""
        for openmp in (["-fopenmp"], ["-fopenmp-simd"], []):
            ext.extra_compile_args, ext.extra_link_args = FLAGS + openmp, [f for f in openmp if f == "-fopenmp"]
            try:
                super().build_extension(ext)
                return
            except Exception as error:
                reason = error
        print(f"regard: no native kernels ({reason}); everything works without them, more slowly", file=sys.stderr)

    def copy_extensions_to_source(self):
        """An editable install takes the library if there is one."""
        self.extensions = [e for e in self.extensions if os.path.exists(self.get_ext_fullpath_built(e))]
        super().copy_extensions_to_source()

    def get_ext_fullpath_built(self, ext):
        """Where the library was built."""
        return os.path.join(self.build_lib, self.get_ext_filename(self.get_ext_fullname(ext.name)))

    def get_export_symbols(self, ext):
        """None: there is no module to initialise."""
        return []


SOURCES, HEADERS = (sorted(glob(f"src/regard/native/*.{kind}")) for kind in ("cpp", "h"))

setup(
    ext_modules=[Extension("regard.native._kernels", SOURCES, depends=HEADERS, optional=True)],
    cmdclass={"build_ext": Kernels},
)
