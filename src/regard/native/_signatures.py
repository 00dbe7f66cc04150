"""The interface of the kernels: every C function that Python calls, with the types of its arguments and its result.

This is the one place with the arguments of the kernels: `native.call` checks a call by it, a test compares it with the
declarations in the C++ files, and setup.py compiles its version into the libraries. It imports nothing of regard.
"""

from __future__ import annotations

from typing import NamedTuple

INTERFACE = 12  # changes with every signature below, and with the meaning of an argument


class Argument(NamedTuple):
    """An argument of a C function: a number, or the address of numbers.

    `name`: its name, as in the C++ file.
    `type`: its C type, such as "double" or "const float*".
    `entries`: of an address, the sizes whose product is the number of entries: names of other arguments, or numbers.
    `strided`: the tensor has four axes in any layout with the last stride one, and its other strides, in numbers, are
    the three arguments that follow.
    """

    name: str
    type: str
    entries: tuple[str | int, ...] = ()
    strided: bool = False


class Signature(NamedTuple):
    """The arguments of a C function, in order, and the type of its result."""

    arguments: tuple[Argument, ...]
    result: str = "int"


def _reads(name: str, type: str, *entries: str | int) -> Argument:
    return Argument(name, f"const {type}*", entries)


def _writes(name: str, type: str, *entries: str | int) -> Argument:
    return Argument(name, f"{type}*", entries)


def _strided(name: str, type: str, *entries: str | int) -> tuple[Argument, ...]:
    return Argument(name, type, entries, strided=True), *_sizes(*(f"{name}_{axis}" for axis in STRIDES))


def _sizes(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "int64_t") for name in names)


def _numbers(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, "double") for name in names)


STRIDES = "outer", "inner", "step"  # of batches, heads and rows
THREADS = Argument("threads", "int")  # the last argument of every kernel; `native.call` adds it


def _entmax(T: str) -> Signature:
    row = "rows", "n"
    alpha = _reads("alpha", "double", "alphas")
    return Signature((_reads("x", T, *row), _writes("p", T, *row), *_sizes(*row), alpha, *_sizes("alphas"), THREADS))


def _entmax_backward(T: str) -> Signature:
    row = "rows", "n"
    tensors = _reads("p", T, *row), _reads("g", T, *row), _writes("out", T, *row)
    return Signature((*tensors, *_sizes(*row), _reads("alpha", "double", "alphas"), *_sizes("alphas"), THREADS))


def _regions(T: str) -> Signature:
    cell = "rows", "n"
    inputs = _reads("s", T, *cell), _reads("gamma", T, "rows"), _reads("mask", "uint8_t", "masked", *cell)
    outputs = (
        _writes("label", "int32_t", *cell),
        _writes("pull", T, *cell),
        _writes("smooth", T, *cell),
        _writes("middle", T, "rows"),
        _writes("error", "double", "rows"),
    )
    rules = *_sizes("most", "every"), *_numbers("step", "tolerance")
    return Signature((*inputs, *outputs, *_sizes("rows", "n", "w", "masked"), *rules, THREADS))


def _region_means(T: str) -> Signature:
    cell = "rows", "n"
    tensors = _reads("x", T, *cell), _reads("label", "int32_t", *cell), _writes("out", T, *cell)
    return Signature((*tensors, *_sizes(*cell), THREADS))


def _scale(T: str) -> Signature:
    row, column = ("count", "rows"), ("count", "k")
    inputs = _reads("m", T, *row, "k"), _reads("v", T, *column), _reads("a", T, *row)
    outputs = _writes("sums", T, *row), _writes("u", T, *row), _writes("columns", T, *column)
    return Signature((*inputs, *outputs, *_sizes("count", "rows", "k"), THREADS))


def _extras(C: str) -> tuple[Argument, ...]:
    """What is added to scores, or hides them, and the alphas: matrices, and which of them each head has."""
    return (
        _reads("mask", "uint8_t", "masks", "mask_rows", "n"),
        _reads("mask_of", "int64_t", "heads"),
        _reads("bias", C, "biases", "bias_rows", "n"),
        _reads("bias_of", "int64_t", "heads"),
        _reads("alpha", "double", "alphas"),
    )


_ATTENTION = _sizes(
    *("inner", "heads", "rows", "n", "e", "d", "masks", "mask_rows", "biases", "bias_rows", "alphas", "diagonal")
)
_ROW, _KEY = ("heads", "rows"), ("heads", "n")


def _queries_keys_values(T: str) -> tuple[Argument, ...]:
    return (
        *_strided("q", f"const {T}*", *_ROW, "e"),
        *_strided("k", f"const {T}*", *_KEY, "e"),
        *_strided("v", f"const {T}*", *_KEY, "d"),
    )


def _attend_forward(T: str, C: str) -> Signature:
    """Numbers are stored as T and computed in C."""
    outputs = (
        *_strided("out", f"{T}*", *_ROW, "d"),
        _writes("start", "int32_t", "kept", *_ROW),
        _writes("count", "int32_t", "kept", *_ROW),
        _writes("edge", C, "kept", *_ROW, 4),
        _writes("place", "int16_t", "units"),
        _writes("weight", C, "room"),
        _writes("used", "int64_t", 1),
    )
    sizes = *_ATTENTION, *_sizes("kept", "room", "units"), *_numbers("scale")
    return Signature((*_queries_keys_values(T), *_extras(C), *outputs, *sizes, THREADS))


def _attend_backward(T: str, C: str) -> Signature:
    supports = (
        _reads("start", "int32_t", *_ROW),
        _reads("count", "int32_t", *_ROW),
        _reads("edge", C, *_ROW, 4),
        _reads("place", "int16_t", "units"),
        _reads("weight", C, "room"),
    )
    outputs = (
        *_strided("dq", f"{T}*", *_ROW, "e"),
        *_strided("dk", f"{T}*", *_KEY, "e"),
        *_strided("dv", f"{T}*", *_KEY, "d"),
        _writes("k_parts", C, "spare", *_KEY, "e"),
        _writes("v_parts", C, "spare", *_KEY, "d"),
        _writes("dalpha", "double", "learned", "parts", "heads"),
        _writes("dbias", C, "sums", "biases", "bias_rows", "n"),
    )
    counts = _sizes("room", "units", "parts", "spare", "learned", "sums", "groups")
    sizes = *_ATTENTION, *counts, *_numbers("scale")
    grad = _strided("grad", f"const {T}*", *_ROW, "d")
    return Signature((*_queries_keys_values(T), *grad, *_extras(C), *supports, *outputs, *sizes, THREADS))


def _chords() -> Signature:
    ellipses = tuple(_reads(name, "float", "count") for name in ("y1", "y2", "length", "width"))
    rule = _reads("node", "float", "nodes"), _reads("weight", "float", "nodes")
    out = _writes("out", "float", "count", 6)
    numbers = *_sizes("nodes", "q"), *_numbers("reach", "ratio")
    return Signature((*ellipses, out, *_sizes("count"), *rule, *numbers, THREADS))


def _largest() -> Signature:
    # The memory is any part of a tensor, by its address; `native.largest` checks it.
    layout = _reads("count", "int64_t", 3), _reads("step", "int64_t", 3)
    memory = Argument("x", "const void*"), Argument("bytes", "int")
    return Signature((*memory, *layout, *_sizes("width"), THREADS), "int64_t")


def _summarize() -> Signature:
    row, key = ("heads", "rows"), ("heads", "n")
    inputs = (
        _reads("q", "float", *row, "e"),
        _reads("k", "float", *key, "e"),
        _reads("shares", "float", "heads", "regions", "n"),
    )
    outputs = (
        _writes("entropy", "float", *row),
        _writes("support", "int64_t", *row),
        _writes("received", "float", "received_parts", *key),
        _writes("top_weight", "float", *row, "top"),
        _writes("top_place", "int64_t", *row, "top"),
        _writes("mass", "float", *row, "regions"),
    )
    sizes = _sizes("heads", "rows", "n", "e", "regions", "top", "received_parts", "diagonal")
    return Signature((*inputs, *outputs, *sizes, THREADS))


# By suffix, the type of numbers in memory and that of the computation.
_STORED = (
    ("f32", "float", "float"),
    ("bf16", "Bfloat16", "float"),
    ("f16", "Float16", "float"),
    ("f64", "double", "double"),
)

#: Every function by its name. Those that end in a dtype exist for several.
SIGNATURES: dict[str, Signature] = {
    **{f"regard_entmax_{name}": _entmax(T) for name, T in (("f32", "float"), ("f64", "double"))},
    **{f"regard_entmax_backward_{name}": _entmax_backward(T) for name, T in (("f32", "float"), ("f64", "double"))},
    **{f"regard_regions_{name}": _regions(T) for name, T in (("f32", "float"), ("f64", "double"))},
    **{f"regard_region_means_{name}": _region_means(T) for name, T in (("f32", "float"), ("f64", "double"))},
    **{f"regard_scale_{name}": _scale(T) for name, T in (("f32", "float"), ("f64", "double"))},
    **{f"regard_attend_forward_{name}": _attend_forward(T, C) for name, T, C in _STORED},
    **{f"regard_attend_backward_{name}": _attend_backward(T, C) for name, T, C in _STORED},
    "regard_chords_f32": _chords(),
    "regard_largest": _largest(),
    "regard_summarize": _summarize(),
    "regard_version": Signature(()),
    "regard_level": Signature(()),
}
