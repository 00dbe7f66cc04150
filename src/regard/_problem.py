"""An error in the user's input: one line with what to do, and no traceback on the command line."""

from __future__ import annotations


class Problem(ValueError):
    """An error that the user can correct: a missing file, a broken checkpoint, a wrong option.

    The message is one line: what is wrong, with what, and what to do. The command line prints it as it is.
    """
