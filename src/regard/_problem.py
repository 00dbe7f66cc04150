"""An error in the user's input: one line with what to do, and no traceback on the command line."""

from __future__ import annotations


class Problem(ValueError):
    """An error that the user can correct: a missing file, a broken checkpoint, a wrong option.

    The message is one line: what is wrong, with what, and what to do. The command line prints it as it is.
    """


class Unreachable(Exception):
    """A server did not answer for as long as it was waited for.

    No `Problem`, for which `regard.pictures.take` passes a picture over: which pictures a run sees must not depend on
    a network. Its text is one line, also when a process that loads data raised it and torch has put the traceback
    before it.

    >>> str(Unreachable("s3://here does not answer."))
    's3://here does not answer.'
    """

    def __init__(self, text: str) -> None:
        lines = text.strip().splitlines() or [""]
        super().__init__(lines[-1].removeprefix(f"{__name__}.Unreachable: "))
