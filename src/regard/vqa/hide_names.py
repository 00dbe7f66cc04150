"""The ways to hide a cell of a picture, by name; without torch, for the command line."""

from typing import Literal, get_args

HideName = Literal["mean", "blur", "features"]
"""What takes the place of a cell: the mean colour of its picture, the picture blurred, or the mean feature of all."""

HIDE_NAMES: tuple[str, ...] = get_args(HideName)
