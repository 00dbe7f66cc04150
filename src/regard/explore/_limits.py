"""How much a visitor may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, and all of them together, can cost.

    `workers` answer at the same time and at most `waiting` more requests are held; the next is told that the server is
    busy. The playground has as many workers of its own, so that slow answers do not hold it up.

    >>> Limits(workers=4).body_bytes
    8100000
    """

    picture_bytes: int = 8_000_000
    picture_pixels: int = 16_000_000
    question_letters: int = 300
    workers: int = 2
    waiting: int = 16
    seconds_to_send: float = 20.0

    @property
    def body_bytes(self) -> int:
        """The picture, with room for the question and the wrapping around them."""
        return self.picture_bytes + 100_000
