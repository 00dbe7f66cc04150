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

from regard import native

_checks_on: ContextVar[bool] = ContextVar("regard_checks_on", default=True)


@contextmanager
def checks(on: bool) -> Iterator[None]:
    """Switch the checks of *values* (NaN, infinities, alpha below one) on or off inside a block.

    They are on by default. Each one reads a number back from the device, which a GPU has to wait for; shapes,
    dtypes and plain numbers are always checked. Inside `torch.compile` and `torch.func` transforms values
    cannot be read, so there a bad score gives NaN instead of an error.

    >>> import torch, regard
    >>> with regard.checks(False):
    ...     regard.softmax(torch.tensor([float("nan"), 0.0]))
    tensor([nan, nan])
    """
    token = _checks_on.set(on)
    try:
        yield
    finally:
        _checks_on.reset(token)


def transformed(x: Tensor) -> bool:
    """Whether `x` is inside a `torch.func` transform such as vmap or grad."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def readable(x: Tensor) -> bool:
    """Whether Python may look at the values of `x`: not while compiling, nor inside a transform."""
    return not torch.compiler.is_compiling() and not transformed(x)


def exporting() -> bool:
    """Whether a graph for all sizes is being made. Torch 2.6 cannot tell an export from a compilation."""
    asked = getattr(torch.compiler, "is_exporting", torch.onnx.is_in_onnx_export)
    return bool(asked())


def values_checked(x: Tensor) -> bool:
    """Whether the values of `x` can be checked and the user wants it."""
    return readable(x) and _checks_on.get()


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
    fits = x.dim() <= len(shape) and all(a in (1, b) for a, b in zip(reversed(x.shape), reversed(shape), strict=False))
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
        complain("mask", got, "a boolean tensor, True = take part", "Use mask.bool(), or bias == 0.", TypeError)
    broadcasts("mask", mask, shape, of)


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
    if not values_checked(x) or x.numel() == 0 or native.surely_finite(x) or math.isfinite(x.detach().sum().item()):
        return
    if not bool(x.isfinite().all()):
        bad = "NaN" if bool(x.isnan().any()) else "an infinity"
        complain(argument, bad, "finite numbers", "Look for a division by zero or an overflow before this call.")


def score_maxima(maxima: Tensor) -> None:
    """The maxima of rows of scores: NaN and +inf show there, -inf means that the whole row is masked."""
    if values_checked(maxima) and not bool((maxima < float("inf")).all()):
        bad = "NaN" if bool(maxima.isnan().any()) else "+inf"
        complain("s", bad, "scores below +inf", "Only -inf is meaningful: it masks an entry.")


def context(c: Tensor, **inputs: Tensor) -> None:
    """A finite context; otherwise say which of the `inputs` is not, or that the scores went past their dtype."""
    if not values_checked(c) or native.surely_finite(c) or math.isfinite(c.detach().sum().item()):
        return
    if not bool(c.isfinite().all()):
        for argument, x in inputs.items():
            finite(argument, x)
        complain(
            "q, k", f"scores that overflow {c.dtype}", "finite scores", "Scale queries or keys down, or use Dot(scale)."
        )


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
