"""Calling a kernel: whether tensors are supported, and the check of a call against the table of signatures."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from regard._check import complain
from regard._torch import has_storage, in_transform
from regard.native._choose import library
from regard.native._signatures import SIGNATURES, STRIDES, THREADS, Argument

_REAL = Tensor, torch.nn.Parameter
# By C type: the ctypes of a number, its Python types, and the dtype of a tensor where C expects an address.
_NUMBERS: dict[str, Any] = {"int": ctypes.c_int, "int64_t": ctypes.c_int64, "double": ctypes.c_double}
_KINDS: dict[str, Any] = {"int": int, "int64_t": int, "double": (int, float)}
_DTYPES = {
    "float*": torch.float32,
    "double*": torch.float64,
    "Bfloat16*": torch.bfloat16,
    "Float16*": torch.float16,
    "int16_t*": torch.int16,
    "int32_t*": torch.int32,
    "int64_t*": torch.int64,
    "uint8_t*": torch.bool,
}
_SUFFIXES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels support these: CPU tensors with memory, of one dtype, float32 or float64."""
    dtype = tensors[0].dtype
    if dtype is not torch.float32 and dtype is not torch.float64:
        return False
    for x in tensors:  # a loop: a generator would double the time
        if x.dtype is not dtype or not x.is_cpu or not readable_memory(x):
            return False
    return library() is not None


def reachable(*tensors: Tensor) -> bool:
    """Whether there are kernels, and they can read these: CPU tensors with memory, of any dtype."""
    for x in tensors:
        if not x.is_cpu or not readable_memory(x):
            return False
    return library() is not None


def readable_memory(x: Tensor) -> bool:
    """Whether a kernel can read the memory of x: it is neither a fake nor a wrapped tensor, nor one of a batch of
    gradients (`is_grads_batched`)."""
    return type(x) in _REAL and not in_transform(x) and has_storage(x)


def suffix(x: Tensor) -> str:
    """The suffix of the names of kernels for the dtype of x."""
    return _SUFFIXES[x.dtype]


def call(name: str, *arguments: Any) -> int:
    """Run the kernel of this name in `SIGNATURES` and return its result.

    Tensors are passed by address; they must be contiguous, or as `strided` passes them where the table says so, on a
    CPU, and have the dtype and the size of the table.
    Numbers are passed as they are, and the number of threads, torch's, is added. A call that does not fit the table is
    a TypeError or a ValueError, before anything runs.
    """
    kernel = prepared(library(), name)
    if len(arguments) != len(kernel.arguments):
        _refuse(kernel, arguments)
    values = list(arguments)
    try:
        # Calls of torch matter where rows are short: as few as possible.
        for place, dtype, entries, sizes, is_strided in kernel.tensors:
            x = arguments[place]
            for size in sizes:
                entries *= arguments[size]
            if x.dtype is not dtype or x.numel() != entries or not x.is_cpu:
                _refuse(kernel, arguments)
            if x.stride() != (*arguments[place + 1 : place + 4], 1) if is_strided else not x.is_contiguous():
                _refuse(kernel, arguments)
            values[place] = x.data_ptr()
        result: int = kernel.function(*values, torch.get_num_threads())
    except (AttributeError, RuntimeError, ctypes.ArgumentError):  # no tensor where there should be one, or the reverse
        _refuse(kernel, arguments)
    return result


def strided(x: Tensor) -> tuple[Tensor | int, ...]:
    """A tensor of four axes as `call` takes it where the table says strided: with the strides of all axes but the last,
    which must be one."""
    return x, *x.stride()[:3]


class Kernel(NamedTuple):
    """A C function with its types, and the requirements on a call.

    `name`: its name in the table.
    `function`: the function, which takes addresses and numbers.
    `arguments`: those of `call`: all but the number of threads.
    `tensors`: for each tensor its place, its dtype, a number and the places of sizes, whose product is the number of
    its entries, and whether it is strided.
    """

    name: str
    function: Any
    arguments: tuple[Argument, ...]
    tensors: tuple[tuple[int, torch.dtype, int, tuple[int, ...], bool], ...]


@functools.cache
def prepared(kernels: ctypes.CDLL | None, name: str) -> Kernel:
    """A kernel of a library, with its types set."""
    if kernels is None:
        raise RuntimeError(f"{name}: there are no kernels to call. Ask native.usable first.")
    arguments, result = SIGNATURES[name]
    function = getattr(kernels, name)
    function.argtypes = [_NUMBERS.get(x.type, ctypes.c_void_p) for x in arguments]
    function.restype = _NUMBERS[result]
    arguments = tuple(x for x in arguments if x is not THREADS)
    places = {x.name: place for place, x in enumerate(arguments)}
    tensors = tuple(
        (
            places[x.name],
            _dtype(x),
            math.prod(n for n in x.entries if isinstance(n, int)),
            tuple(places[n] for n in x.entries if isinstance(n, str)),
            x.strided,
        )
        for x in arguments
        if x.entries
    )
    return Kernel(name, function, arguments, tensors)


def _dtype(argument: Argument) -> torch.dtype:
    return _DTYPES[argument.type.removeprefix("const ")]


def _strides(argument: Argument, values: dict[str, Any]) -> tuple[int, ...]:
    """The strides that are passed with a strided tensor."""
    return tuple(values[f"{argument.name}_{axis}"] for axis in STRIDES)


def _refuse(kernel: Kernel, arguments: tuple[Any, ...]) -> NoReturn:
    """Raise the error of a call that does not fit the table."""
    remedy = "See the table in regard.native._signatures."
    names = [x.name for x in kernel.arguments]
    if len(arguments) != len(names):
        expected = f"{len(names)} ({', '.join(names)})"
        complain(kernel.name, f"{len(arguments)} arguments", expected, remedy, TypeError)
    values = dict(zip(names, arguments, strict=True))
    for argument in kernel.arguments:
        x, what = values[argument.name], f"{kernel.name}, {argument.name}"
        if not argument.entries:
            if not isinstance(x, _KINDS[argument.type]):
                complain(what, type(x).__name__, f"a number ({argument.type})", remedy, TypeError)
        elif not isinstance(x, Tensor) or x.dtype != _dtype(argument):
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            complain(what, got, f"a tensor of {_dtype(argument)}", remedy, TypeError)
    for argument in kernel.arguments:
        x, what = values[argument.name], f"{kernel.name}, {argument.name}"
        if argument.strided and (x.dim() != 4 or x.stride()[:3] != _strides(argument, values) or x.stride(3) != 1):
            got = f"strides {x.stride()} with arguments {_strides(argument, values)}"
            complain(what, got, "four axes, the last stride one, the others as arguments", remedy)
        if argument.entries and not (x.is_cpu and (argument.strided or x.is_contiguous())):
            layout = "contiguous" if x.is_contiguous() else "strided"
            complain(what, f"{layout} memory on {x.device}", "contiguous memory on a CPU", remedy)
        if argument.entries and x.numel() != (
            entries := math.prod(n if isinstance(n, int) else values[n] for n in argument.entries)
        ):
            product = " * ".join(str(n) for n in argument.entries)
            complain(what, f"{x.numel()} entries", f"{entries}, which is {product}", remedy)
    raise AssertionError(f"{kernel.name} was refused without a reason")
