"""The connections of the server: their number is bounded, and those that only wait are closed; and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.explore._limits import Limits

_LOOK = 1.0  # seconds between two looks at all connections
_OTHERS = 64  # descriptors that the process needs for other things


class Connection(H11Protocol):
    """A connection that knows since when it waits for a request."""

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        """`arguments` are those of uvicorn."""
        super().__init__(**arguments)
        self._all = connections
        self.waiting_since = self.stuck_since = self.loop.time()
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._all.remove(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Called by uvicorn when a request has its answer."""
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """Whether no request has arrived that is not answered yet."""
        return self.cycle is None or self.cycle.response_complete

    def look(self) -> None:
        """Close it if it has sent no request for too long, or has not read its answer."""
        now, allowed = self.loop.time(), self._all.limits.seconds_idle
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread != self._unread:
            self.stuck_since, self._unread = now, unread
        if now - self.stuck_since > allowed:
            self.transport.abort()
        elif self.waits and now - self.waiting_since > allowed:
            self.transport.close()


class Connections:
    """All connections of a server, at most so many: beyond, the one that has waited for longest is closed."""

    def __init__(self, limits: Limits) -> None:
        """None yet, under these limits."""
        self.limits = limits
        self.most = max(1, min(limits.connections, descriptors() - _OTHERS))
        self.stopping = False
        self._open: set[Connection] = set()
        self._next_look: asyncio.TimerHandle | None = None

    def protocol(self, **arguments: Any) -> Connection:
        """A new connection; uvicorn calls it in place of its own class."""
        return Connection(self, **arguments)

    def add(self, connection: Connection) -> None:
        """Note a connection that was opened, and close another if there are too many."""
        waiting = [other for other in self._open if other.waits] if len(self._open) >= self.most else []
        if waiting:
            oldest = min(waiting, key=lambda other: other.waiting_since)
            oldest.transport.close()
            self.remove(oldest)  # now, as asyncio tells of its end later, and others may come before
        self._open.add(connection)
        if self.stopping:
            connection.transport.close()
        if self._next_look is None:
            self._look()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed; uvicorn, which bounds their number too, shall not count it either."""
        self._open.discard(connection)
        connection.connections.discard(connection)

    def _look(self) -> None:
        """Look at all connections, now and every second as long as there are any."""
        for connection in list(self._open):
            connection.look()
        self._next_look = asyncio.get_running_loop().call_later(_LOOK, self._look) if self._open else None


class Server(uvicorn.Server):
    """The server. At its end what is being worked on is answered; what waits is told so, and holds nothing up."""

    def __init__(self, app: Any, host: str, limits: Limits, stop: Callable[[], None]) -> None:
        """`stop` is called when the end begins."""
        self.bounded, self._stop = Connections(limits), stop
        config = uvicorn.Config(
            app,
            host,
            http=self.bounded.protocol,  # type: ignore[arg-type]
            log_level="warning",
            limit_concurrency=self.bounded.most + _OTHERS // 2,  # should nobody wait who could be closed
            timeout_keep_alive=int(limits.seconds_idle),
            timeout_graceful_shutdown=limits.seconds_to_end,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn after a signal."""
        self.bounded.stopping = True
        self._stop()
        await super().shutdown(sockets)


def descriptors() -> int:
    """How many files and connections this process may have open.

    >>> descriptors() > 64
    True
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if most == resource.RLIM_INFINITY else most
