"""The option --hide of `regard evaluate` and `regard compare`."""

from __future__ import annotations

from typing import cast

from regard._problem import Problem
from regard.vqa.hide_names import HIDE_NAMES, HideName


def checked_hide(hide: str | None, questions: int) -> HideName | None:
    """The value of --hide; a Problem for another name, and if nothing is to be hidden."""
    if hide is None:
        return None
    if hide not in HIDE_NAMES:
        raise Problem(f"there is no --hide {hide}. Choose one of {', '.join(HIDE_NAMES)}.")
    if not questions:
        raise Problem("--hide says how cells are hidden, and none are. Say for how many questions: --faithfulness 100")
    return cast(HideName, hide)
