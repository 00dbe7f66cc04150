"""A complaint about what the user gave: one line with what to do, and no traceback on the command line."""

from __future__ import annotations


class Problem(ValueError):
    """Something that the user can put right: a missing file, a broken checkpoint, a wrong option.

    The message is one line: what is wrong, with what, and what to do. The command line prints it as it is.
    """
