"""Checks of arguments: plain ones, which `regard._plain` has for files that do without torch, and tensors.

A message names the argument, what it got, what was expected, and how to fix it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from regard._plain import choice as choice
from regard._plain import complain as complain
from regard._plain import count as count
from regard._plain import number as number
from regard._plain import share as share
from regard._torch import exporting, in_transform, without_values

# None: on for a CPU, off for devices where reading a value would synchronise.
_checks_on: ContextVar[bool | None] = ContextVar("regard_checks_on", default=None)


@contextmanager
def checks(on: bool | None) -> Iterator[None]:
    """Switch the checks of *values* (NaN, infinities, an alpha that is not positive) on or off inside a block.

    By default (`None`) they are on for tensors on a CPU, where they cost one pass over the inputs, and off on all other
    devices: a check reads a number back, which synchronises a GPU in every step. `True` finds the first bad number on a
    GPU, at that cost. Shapes, dtypes and plain numbers are always checked. Inside `torch.compile` and `torch.func`
    transforms values cannot be read. Where values are not checked, the result of bad ones is undefined: mostly NaN.

    >>> import torch, regard
    >>> with regard.checks(False):
    ...     regard.softmax(torch.tensor([float("nan"), 0.0])).shape
    torch.Size([2])
    """
    token = _checks_on.set(on)
    try:
        yield
    finally:
        _checks_on.reset(token)


def readable(x: Tensor) -> bool:
    """Whether Python can read the values of `x`: not while compiling, inside a transform, or without any (meta)."""
    return not (torch.compiler.is_compiling() or in_transform(x) or without_values(x))


def readable_at_once(x: Tensor) -> bool:
    """Whether reading a value of `x` waits for no device: it can be read, and is on a CPU."""
    return readable(x) and x.is_cpu


def values_checked(x: Tensor) -> bool:
    """Whether to check the values of `x`: they can be read, and `checks` is on."""
    if not readable(x):
        return False
    switch = _checks_on.get()
    return x.is_cpu if switch is None else switch


def floating(argument: str, x: Any, *, min_dims: int = 0) -> None:
    """A floating-point tensor with at least `min_dims` dimensions."""
    if not isinstance(x, Tensor):
        complain(argument, type(x).__name__, "a torch.Tensor", "Convert it with torch.as_tensor.", TypeError)
    if not x.dtype.is_floating_point:
        complain(argument, x.dtype, "a floating-point dtype", "Convert it with .float().", TypeError)
    if x.dim() < min_dims:
        complain(
            argument,
            f"shape {tuple(x.shape)}",
            f"at least {min_dims} dimensions",
            "Add an axis with unsqueeze.",
        )


def axis(argument: str, x: Tensor, dim: int) -> int:
    """`dim` as a negative number, after checking that `x` has that axis and that it is not empty."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        complain(
            "dim",
            repr(dim),
            "an integer",
            "A map acts along one axis; flatten several axes first.",
            TypeError,
        )
    if not -x.dim() <= dim < x.dim():
        complain("dim", dim, f"an axis of {argument}, which has shape {tuple(x.shape)}", "The default is -1.")
    dim = dim if dim < 0 else dim - x.dim()
    if x.shape[dim] == 0:
        complain(
            argument,
            f"shape {tuple(x.shape)}, empty along dim {dim}",
            "at least one entry there",
            "There is no distribution over nothing; drop the row before.",
        )
    return dim


def broadcasts(argument: str, x: Tensor, shape: torch.Size, of: str) -> None:
    """Check that `x` broadcasts to a shape, and does not enlarge it.

    `argument`, `x`: its name and the tensor.
    `shape`, `of`: the shape, and the name of what has it.
    """
    if exporting():
        return  # a comparison with 1 makes torch 2.8 export a graph that refuses a size of 1
    fits = x.dim() <= len(shape)
    for place in range(1, 1 + min(x.dim(), len(shape))):  # a plain loop, which every compiler of torch can trace
        fits = fits and x.shape[-place] in (1, shape[-place])
    if not fits:
        complain(
            argument,
            f"shape {tuple(x.shape)}",
            f"a shape that broadcasts to that of {of}, {tuple(shape)}",
            "Shapes are aligned at the last axis; add axes of size 1 with unsqueeze.",
        )


def boolean_mask(mask: Any, shape: torch.Size, of: str = "s") -> None:
    """A boolean mask, True where an entry takes part, that broadcasts to `shape`."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        remedy = "Use mask.bool()."
        if isinstance(mask, Tensor) and mask.dtype.is_floating_point:  # a "float mask" of torch
            remedy = "Pass it as bias: it is added to the scores." if of == "the scores" else "Add it to the scores."
        complain("mask", got, "a boolean tensor, True = take part", remedy, TypeError)
    broadcasts("mask", mask, shape, of)


def float_bias(bias: Any, shape: torch.Size) -> None:
    """A floating-point tensor that broadcasts to the scores, to be added to them."""
    if not isinstance(bias, Tensor) or not bias.dtype.is_floating_point:
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        remedy = "Pass a boolean mask, True = take part, as mask; convert others with .float()."
        complain("bias", got, "a floating-point tensor", remedy, TypeError)
    broadcasts("bias", bias, shape, "the scores")


def below_infinity(argument: str, x: Tensor) -> float:
    """The largest absolute entry of a bias on scores; NaN and +inf are errors. Zero if values are not checked.

    -inf leaves a key out. With one present the result is the largest number of the dtype, a bound on the others.
    """
    if not values_checked(x) or x.numel() == 0:
        return 0.0
    low, high = (float(end) for end in x.detach().aminmax())  # documented to propagate NaN
    if not high < math.inf:
        got = "NaN" if math.isnan(high) else "+inf"
        complain(argument, got, "numbers below +inf", "Only -inf is meaningful: it leaves a key out.")
    return torch.finfo(x.dtype).max if low == -math.inf else max(-low, high)


def finite(argument: str, x: Tensor) -> None:
    """No NaN and no infinity, if values are checked. One pass and no copy unless there is an error."""
    if not values_checked(x) or x.numel() == 0 or _sums_below_infinity(x, -math.inf):
        return
    if not bool(x.isfinite().all()):
        bad = "NaN" if bool(x.isnan().any()) else "an infinity"
        complain(argument, bad, "finite numbers", "Look for a division by zero or an overflow before this call.")


def scores(s: Tensor) -> None:
    """Scores below +inf, if values are checked; -inf masks an entry. One pass and no copy unless there is an error."""
    if not values_checked(s) or s.numel() == 0 or _sums_below_infinity(s):
        return
    if bool(s.isnan().any()):
        complain("s", "NaN", "scores below +inf", "Only -inf is meaningful: it masks an entry.")
    if bool(s.isposinf().any()):
        complain("s", "+inf", "scores below +inf", "Only -inf is meaningful: it masks an entry.")


def _sums_below_infinity(x: Tensor, above: float | None = None) -> bool:
    """Whether the sum of x proves that x has neither NaN nor +inf (with `above` = -inf, nor -inf).

    In any order of summation a NaN stays NaN, and +inf stays or becomes NaN. False if the sum overflows.
    """
    total: float = x.detach().sum().item()
    return total < math.inf and (above is None or total > above)


def last_axis(argument: str, x: Tensor, size: int, of: str) -> None:
    """Check the size of the last axis.

    `argument`, `x`: its name and the tensor.
    `size`, `of`: the number of entries, and what they are.
    """
    if x.shape[-1:] != (size,):
        complain(argument, f"shape {tuple(x.shape)}", f"{size} entries ({of}) on the last axis", "Check the order.")


def nonnegative(argument: str, x: Tensor, remedy: str = "Scores become weights with softmax or another map.") -> None:
    """Finite and no entry below zero, if values are checked."""
    finite(argument, x)
    if values_checked(x) and bool((x.detach() < 0).any()):
        complain(argument, f"a negative entry, {float(x.min())}", "entries >= 0", remedy)


def covariance(argument: str, x: Tensor) -> None:
    """Finite matrices with a positive diagonal, if values are checked."""
    finite(argument, x)
    if values_checked(x) and not bool((x.detach().diagonal(dim1=-2, dim2=-1) > 0).all()):
        complain(argument, "a variance <= 0", "positive definite matrices", "Build it as L L^T, see from_cholesky.")


def grid_shape(shape: Any, length: int) -> tuple[int, int]:
    """(height, width) of a grid whose cells lie along an axis of `length`."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 2:
        complain("shape", repr(shape), "(height, width)", "Leave it out if the last two axes are the grid.", TypeError)
    height, width = count("shape[0]", shape[0]), count("shape[1]", shape[1])
    if height * width != length:
        complain(
            "shape",
            f"{(height, width)}, {height * width} cells",
            f"the {length} entries along the last axis of s",
            "Leave it out if the last two axes are the grid.",
        )
    return height, width
