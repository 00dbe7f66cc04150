"""Progress of several trainings as one share, on the command line."""

from __future__ import annotations

from typing import Any


class SharesShown:
    """Shows the share that is trained, from when the workers have started, which an estimate should not count."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self.first: float | None = None
        self.bar: Any = None

    def __call__(self, share: float) -> None:
        """Show it."""
        from regard.training._progress import Progress

        if self.first is None:
            self.first = share
        if self.bar is None and share > self.first:
            self.bar = Progress(1.0, "training", start=share)
        if self.bar is not None:
            self.bar.show(share)
