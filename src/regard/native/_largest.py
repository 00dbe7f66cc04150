"""The largest absolute entry of a tensor in any layout, in one pass that only reads."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from regard.native._call import prepared, readable_memory
from regard.native._choose import library

# By dtype: bytes, the bits of infinity, and the function from bits without the sign to a Python number.
_FLOATS: dict[torch.dtype, tuple[int, int, Callable[[int], float]]] = {
    torch.float16: (2, 0x7C00, lambda bits: struct.unpack("<e", bits.to_bytes(2, "little"))[0]),
    torch.bfloat16: (2, 0x7F80, lambda bits: struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]),
    torch.float32: (4, 0x7F800000, lambda bits: struct.unpack("<f", bits.to_bytes(4, "little"))[0]),
    torch.float64: (8, 0x7FF0000000000000, lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0]),
}
_Three = ctypes.c_int64 * 3
_ONES, _ZEROS = _Three(1, 1, 1), _Three(0, 0, 0)
# ctypes takes an address faster than an array.
_ADDRESS_OF_ONES, _ADDRESS_OF_ZEROS = ctypes.addressof(_ONES), ctypes.addressof(_ZEROS)


def largest(x: Tensor) -> float | None:
    """The largest absolute entry of a tensor that is not empty: infinity if one is NaN or infinite.

    One pass that only reads. None if no kernel suits x: another device or dtype, or a last stride other than one.
    """
    if (
        (kind := _FLOATS.get(x.dtype)) is None
        or not x.is_cpu
        or not readable_memory(x)
        or (kernels := library()) is None
    ):
        return None
    size, first_infinite, number = kind
    function = prepared(kernels, "regard_largest").function  # not by `call`, which requires a contiguous tensor
    # At a few hundred keys calls of torch matter: as few as possible in the usual case.
    if x.is_contiguous():
        start, count, step, width = x.data_ptr(), _ADDRESS_OF_ONES, _ADDRESS_OF_ZEROS, x.numel()
    elif (memory := x.untyped_storage()).nbytes() == size * x.numel():  # a permutation of all of its storage
        start, count, step, width = memory.data_ptr(), _ADDRESS_OF_ONES, _ADDRESS_OF_ZEROS, x.numel()
    elif 0 < x.dim() <= 4 and x.stride(-1) == 1:
        start, width, missing = x.data_ptr(), x.shape[-1], [1] * (4 - x.dim())
        steps = [*missing, *x.stride()[:-1]]
        # Expanded axes, with a step of zero, are read once.
        counts = [n if s else 1 for n, s in zip([*missing, *x.shape[:-1]], steps, strict=True)]
        layout = _Three(*counts), _Three(*steps)
        count, step = ctypes.addressof(layout[0]), ctypes.addressof(layout[1])
    else:
        return None
    bits: int = function(start, size, count, step, width, torch.get_num_threads())
    return math.inf if bits >= first_infinite else number(bits)
