"""Optional kernels for GPUs in Triton; imported at first use, with plain PyTorch as fallback.

Which tensors they take is decided in `_choose.py`, by device and dtype alone, never by values, so that nothing waits
for the device. The environment variable REGARD_TRITON=0 switches them off,
and REGARD_TRITON=tune measures which warps are fastest. Nobody has run them on a device yet: they
are tested in an interpreter on CPUs and compiled for three targets (docs/guides/gpu.md).
"""

from regard.gpu._choose import kernels_for, switched_on, triton_kernels, usable

__all__ = ["kernels_for", "switched_on", "triton_kernels", "usable"]
