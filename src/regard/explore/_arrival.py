"""Bodies of requests while they arrive: each has some seconds, and all together some bytes of memory."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from regard.explore._limits import Limits


class Arrivals:
    """The bodies that are arriving.

    None holds a place in the queue. If together they have more bytes than allowed, the one that has been arriving for
    longest is given up: a body usually arrives in a moment, so that slow ones are in nobody's way.
    """

    def __init__(self, limits: Limits) -> None:
        """None yet, under these limits."""
        self.limits = limits
        self.stopping = False
        self._arriving: dict[Arrival, None] = {}  # in the order in which they began

    def begin(self, receive: Receive) -> Arrival:
        """The body of a request, of which nothing has been received."""
        return Arrival(self, receive)

    def stop(self) -> None:
        """Give all of them up, and every later one: the server ends."""
        self.stopping = True
        for arrival in self._arriving:
            arrival.give_up()

    @property
    def bytes(self) -> int:
        """The bytes of all of them."""
        return sum(arrival.size for arrival in self._arriving)

    def keep(self, arrival: Arrival) -> None:
        """Note that a body is still arriving, and give up the oldest ones if there are too many bytes."""
        self._arriving[arrival] = None
        excess = self.bytes - self.limits.arriving_bytes
        for oldest in self._arriving:
            if excess <= 0:
                break
            oldest.give_up()
            excess -= oldest.size

    def end(self, arrival: Arrival) -> None:
        """Forget a body that has arrived, or that nobody waits for."""
        self._arriving.pop(arrival, None)


class Arrival:
    """The body of one request; `receive` is the ASGI function, with errors if it is too large or takes too long."""

    def __init__(self, arrivals: Arrivals, receive: Receive) -> None:
        self.size = 0
        self._all, self._receive = arrivals, receive
        self._complete = False
        self._deadline = asyncio.get_running_loop().time() + arrivals.limits.seconds_to_send
        self._waiting: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        """The next part of the body."""
        if self._complete:
            return await self._receive()
        if self._all.stopping:
            self.give_up()
        self._all.keep(self)
        try:
            async with asyncio.timeout_at(self._deadline) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            self.end()
            if self._all.stopping:
                raise HTTPException(503, "The server is being stopped.") from None
            raise HTTPException(408, "The request took too long to arrive.") from None
        finally:
            self._waiting = None
        self.size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.end()
        if self.size > self._all.limits.body_bytes:
            self.end()
            raise HTTPException(413, too_large(self._all.limits))
        return message

    def give_up(self) -> None:
        """Wait for it no longer."""
        self._deadline = asyncio.get_running_loop().time()
        if self._waiting is not None:
            self._waiting.reschedule(self._deadline)

    def end(self) -> None:
        """It has arrived, or nobody waits for it."""
        self._complete = True
        self._all.end(self)


def too_large(limits: Limits) -> str:
    """What to say of a request that is too large."""
    return f"The request is larger than {limits.body_bytes} bytes. Send a smaller picture."
