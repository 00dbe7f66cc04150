"""Every complaint about bad input is worded here.

A complaint names the argument, says what came, what was expected, and how to fix it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import torch
from torch import Tensor

from regard._torch import exporting, in_transform, without_values

# None: where looking at values does not make anybody wait, which is on a CPU.
_checks_on: ContextVar[bool | None] = ContextVar("regard_checks_on", default=None)


@contextmanager
def checks(on: bool | None) -> Iterator[None]:
    """Switch the checks of *values* (NaN, infinities, an alpha that is not positive) on or off inside a block.

    Without it they are on for tensors on a CPU, where they cost one pass over the inputs, and off on all other devices:
    a check reads a number back, and a GPU would have to finish its work first, in every step. `True` is for looking for
    the first bad number on a GPU, and waits; `None` is the default again. Shapes, dtypes and plain numbers are always
    checked. Inside `torch.compile` and `torch.func` transforms values cannot be read. Where values are not checked, bad
    ones give what torch's kernels make of them: mostly NaN, but that is not promised.

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
    """Whether Python may look at the values of `x`: not while compiling, nor inside a transform, nor if it has none."""
    return not (torch.compiler.is_compiling() or in_transform(x) or without_values(x))


def values_checked(x: Tensor) -> bool:
    """Whether the values of `x` can be checked and the user wants it."""
    if not readable(x):
        return False
    wish = _checks_on.get()
    return x.is_cpu if wish is None else wish


def complain(argument: str, got: object, expected: str, remedy: str, kind: type[Exception] = ValueError) -> NoReturn:
    """Raise `kind` in the one form that every error of regard has."""
    raise kind(f"{argument}: got {got}, expected {expected}. {remedy}")


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
    """`x` can be broadcast to `shape`, the shape of `of`, without making it larger."""
    if exporting():
        return  # asked whether a size is one, torch 2.8 makes a graph that refuses a size of one
    fits = x.dim() <= len(shape)
    for place in range(1, 1 + min(x.dim(), len(shape))):  # in words that every compiler of torch can follow
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
        if isinstance(mask, Tensor) and mask.dtype.is_floating_point:  # what torch calls a float mask
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
    """The largest absolute entry of what is added to scores; NaN and +inf are refused, if values are to be checked.

    -inf leaves a key out. Beside one the other entries are not looked at, and could be as large as their dtype allows.
    """
    if not values_checked(x) or x.numel() == 0:
        return 0.0
    low, high = (float(end) for end in x.detach().aminmax())  # documented to hand NaN on
    if not high < math.inf:
        got = "NaN" if math.isnan(high) else "+inf"
        complain(argument, got, "numbers below +inf", "Only -inf is meaningful: it leaves a key out.")
    return torch.finfo(x.dtype).max if low == -math.inf else max(-low, high)


def number(
    argument: str, value: Any, *, above: float | None = None, at_least: float | None = None, remedy: str = ""
) -> float:
    """A finite Python number inside its bounds."""
    bound = f" > {above}" if above is not None else f" >= {at_least}" if at_least is not None else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        complain(argument, repr(value), f"a number{bound}", remedy or "Pass an int or a float.", TypeError)
    too_low = (above is not None and value <= above) or (at_least is not None and value < at_least)
    if too_low or value != value or value in (float("inf"), float("-inf")):
        complain(argument, value, f"a finite number{bound}", remedy or "Choose another value.")
    return float(value)


def count(argument: str, value: Any, *, at_least: int = 1) -> int:
    """A whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int):
        complain(argument, repr(value), f"a whole number >= {at_least}", "Pass an int.", TypeError)
    if value < at_least:
        complain(argument, value, f"a whole number >= {at_least}", "Choose a larger one.")
    return value


def share(argument: str, value: Any) -> float:
    """A part of a whole that is not all of it, as dropout takes it."""
    if number(argument, value, at_least=0) >= 1:
        complain(argument, value, "a share in [0, 1)", "0 switches it off.")
    return float(value)


def choice(argument: str, value: Any, options: tuple[Any, ...]) -> None:
    """One of a few named options."""
    if value not in options:
        complain(argument, repr(value), "one of " + ", ".join(map(repr, options)), "Choose one of these.")


def finite(argument: str, x: Tensor) -> None:
    """No NaN and no infinity, if values are to be checked. One pass and no copy while all is well."""
    if not values_checked(x) or x.numel() == 0 or _sums_below_infinity(x, -math.inf):
        return
    if not bool(x.isfinite().all()):
        bad = "NaN" if bool(x.isnan().any()) else "an infinity"
        complain(argument, bad, "finite numbers", "Look for a division by zero or an overflow before this call.")


def scores(s: Tensor) -> None:
    """Scores below +inf, if values are to be checked; -inf masks an entry. One pass and no copy while all is well."""
    if not values_checked(s) or s.numel() == 0 or _sums_below_infinity(s):
        return
    if bool(s.isnan().any()):
        complain("s", "NaN", "scores below +inf", "Only -inf is meaningful: it masks an entry.")
    if bool(s.isposinf().any()):
        complain("s", "+inf", "scores below +inf", "Only -inf is meaningful: it masks an entry.")


def _sums_below_infinity(x: Tensor, above: float | None = None) -> bool:
    """Whether the sum says, in whatever order it was taken, that there is neither NaN nor +inf (nor -inf) in x.

    NaN stays in a sum, +inf stays or becomes NaN. A sum that overflows says nothing.
    """
    total: float = x.detach().sum().item()
    return total < math.inf and (above is None or total > above)


def last_axis(argument: str, x: Tensor, size: int, of: str) -> None:
    """The last axis of `x` has `size` entries, the number of `of`."""
    if x.shape[-1:] != (size,):
        complain(argument, f"shape {tuple(x.shape)}", f"{size} entries ({of}) on the last axis", "Check the order.")


def nonnegative(argument: str, x: Tensor, remedy: str = "Scores become weights with softmax or another map.") -> None:
    """Finite and no entry below zero, if values are to be checked."""
    finite(argument, x)
    if values_checked(x) and bool((x.detach() < 0).any()):
        complain(argument, f"a negative entry, {float(x.min())}", "entries >= 0", remedy)


def covariance(argument: str, x: Tensor) -> None:
    """Finite matrices with a positive diagonal, if values are to be checked."""
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
