"""What holds for every request: its size, the time it takes to send, and the headers of the answer."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.explore._limits import Limits

HEADERS = {
    # Nothing is loaded from anywhere else, and nobody puts the page into a frame of theirs.
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuses bodies that are too large or too slow, requests to a foreign name, and writes from other sites."""

    def __init__(self, app: ASGIApp, limits: Limits, hosts: frozenset[str] | None) -> None:
        """`hosts` are the names that the server answers to; None for any."""
        self.app, self.limits, self.hosts = app, limits, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        if refusal := self._refuse(scope["method"], headers):
            status, why = refusal
            await JSONResponse({"error": why}, status)(scope, receive, sending)
            return
        await self.app(scope, self._counting(receive), sending)

    def _refuse(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        # A page elsewhere can point a name of its own at this machine and then read what is served here.
        if self.hosts is not None and _name(headers.get("host", "")) not in self.hosts:
            return 400, "This server does not answer to that name. Use --host to serve others."
        # Somebody may follow a link to a view from anywhere; scripts of other pages get nothing.
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and (method != "GET" or headers.get("sec-fetch-mode") != "navigate"):
            return 403, "Requests from other sites are not answered."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15:
            return 400, "The content-length is not a number."
        if int(length) > self.limits.body_bytes:
            return 413, self._too_large
        return None

    @property
    def _too_large(self) -> str:
        return f"The request is larger than {self.limits.body_bytes} bytes. Send a smaller picture."

    def _counting(self, receive: Receive) -> Receive:
        """`receive`, until there has been too much of it, or too slowly."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.seconds_to_send
        seen, whole = 0, False

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - loop.time()))
            except TimeoutError:
                raise HTTPException(408, "The request took too long to arrive.") from None
            seen += len(message.get("body", b""))
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            if seen > self.limits.body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return counted


def _name(host: str) -> str:
    """The name in a host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
