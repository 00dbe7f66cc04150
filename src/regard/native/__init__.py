"""Optional native kernels for CPUs, in C++ behind a C interface; loaded at first use, with plain PyTorch as fallback.

They are built in variants for different instruction sets; the widest that the processor supports is used. The
environment variable REGARD_NATIVE selects another: 0 for none, the name of a variant, or the path of another build. A
selection that cannot be loaded is an error at first use.
"""

from regard.native._call import call, reachable, strided, suffix, usable
from regard.native._choose import cpu_kernels, library, native_kernels, switched_off, variant
from regard.native._largest import largest
from regard.native._load import variants

__all__ = [
    "call",
    "cpu_kernels",
    "largest",
    "library",
    "native_kernels",
    "reachable",
    "strided",
    "suffix",
    "switched_off",
    "usable",
    "variant",
    "variants",
]
