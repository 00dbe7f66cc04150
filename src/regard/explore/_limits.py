"""Limits of requests to the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on the cost of one request, and of all together.

    `picture_bytes`, `picture_pixels`: of an upload.
    `question_letters`: of a question.
    `workers`: threads that answer; the playground has as many of its own, so that slow answers do not delay it.
    `waiting`: requests in the queue; the next one gets status 503, busy.
    `seconds_to_send`: until the body of a request must have arrived.

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
        """The size of a request: the picture, the question and the encoding of the form."""
        return self.picture_bytes + 100_000
