"""Fused kernels for CPUs, in C++ behind a plain C interface; loaded at first use, and missed by nobody if absent.

They are built in variants for the instructions that processors have, and the widest that this one can run is taken. The
environment variable REGARD_NATIVE asks for another: 0 for none, the name of a variant, or the path of another build.
What is asked for and cannot be had is an error at first use.
"""

from regard.native._call import call, suffix, usable
from regard.native._choose import library, native_kernels, switched_off
from regard.native._largest import largest
from regard.native._load import variants

__all__ = ["call", "largest", "library", "native_kernels", "suffix", "switched_off", "usable", "variants"]
