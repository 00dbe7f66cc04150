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
    `arriving_bytes`: of all bodies that are arriving; beyond, the one that takes longest is given up.
    `connections`: open at a time; beyond, the one that has waited for longest without a request is closed.
    `seconds_idle`: that a connection may wait without a request, or leave an answer unread.
    `seconds_to_end`: for what is being worked on when the server is stopped.

    >>> Limits(workers=4).body_bytes
    8100000
    """

    picture_bytes: int = 8_000_000
    picture_pixels: int = 16_000_000
    question_letters: int = 300
    workers: int = 2
    waiting: int = 16
    seconds_to_send: float = 20.0
    arriving_bytes: int = 100_000_000
    connections: int = 500
    seconds_idle: float = 10.0
    seconds_to_end: int = 4

    @property
    def body_bytes(self) -> int:
        """The size of a request: the picture, the question and the encoding of the form."""
        return self.picture_bytes + 100_000
