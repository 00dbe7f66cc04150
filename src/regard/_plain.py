"""Checks of plain arguments, numbers and names, and the wording of every error about bad input; needs no torch.

A message names the argument, what it got, what was expected, and how to fix it. `regard._check` has these and the
checks of tensors.
"""

from __future__ import annotations

from typing import Any, NoReturn


def complain(argument: str, got: object, expected: str, remedy: str, kind: type[Exception] = ValueError) -> NoReturn:
    """Raise an error in the form that every error of regard has.

    `argument`: its name.
    `got`: its value, or what is wrong with it.
    `expected`: what it should be.
    `remedy`: a sentence on how to fix it.
    `kind`: the class of the error; default ValueError.
    """
    raise kind(f"{argument}: got {got}, expected {expected}. {remedy}")


def number(
    argument: str, value: Any, *, above: float | None = None, at_least: float | None = None, remedy: str = ""
) -> float:
    """A finite Python number inside its bounds, as a float.

    `argument`, `value`: its name and the number.
    `above`: an exclusive lower bound; default None.
    `at_least`: an inclusive lower bound; default None.
    `remedy`: a sentence on how to fix it; default a general one.
    """
    bound = f" > {above}" if above is not None else f" >= {at_least}" if at_least is not None else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        complain(argument, repr(value), f"a number{bound}", remedy or "Pass an int or a float.", TypeError)
    too_low = (above is not None and value <= above) or (at_least is not None and value < at_least)
    if too_low or value != value or value in (float("inf"), float("-inf")):
        complain(argument, value, f"a finite number{bound}", remedy or "Choose another value.")
    return float(value)


def count(argument: str, value: Any, *, at_least: int = 1) -> int:
    """A whole number >= `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        complain(argument, repr(value), f"a whole number >= {at_least}", "Pass an int.", TypeError)
    if value < at_least:
        complain(argument, value, f"a whole number >= {at_least}", "Choose a larger one.")
    return value


def share(argument: str, value: Any) -> float:
    """A number in [0, 1), such as a dropout rate."""
    if number(argument, value, at_least=0) >= 1:
        complain(argument, value, "a share in [0, 1)", "0 switches it off.")
    return float(value)


def choice(argument: str, value: Any, options: tuple[Any, ...]) -> None:
    """One of a few named options."""
    if value not in options:
        complain(argument, repr(value), "one of " + ", ".join(map(repr, options)), "Choose one of these.")
