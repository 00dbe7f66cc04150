"""Checks on every request (size, time to arrive, host, origin), and security headers on every response."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.explore._arrival import Arrivals, too_large

HEADERS = {
    # The page loads nothing from other origins, and cannot be put into a frame.
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Middleware that refuses bodies too large or too slow, unknown host names, and requests from other sites."""

    def __init__(self, app: ASGIApp, arrivals: Arrivals, hosts: frozenset[str] | None) -> None:
        """`hosts` are the host names that requests may have; None for any."""
        self.app, self.arrivals, self.limits, self.hosts = app, arrivals, arrivals.limits, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        if refusal := self._refuse(scope["method"], headers):
            status, why = refusal
            await JSONResponse({"error": why}, status)(scope, receive, send_with_headers)
            return
        arrival = self.arrivals.begin(receive)
        try:
            await self.app(scope, arrival.receive, send_with_headers)
        finally:
            arrival.end()

    def _refuse(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        # DNS rebinding: another site can point its name at this machine, and then read what is served here.
        if self.hosts is not None and _name(headers.get("host", "")) not in self.hosts:
            return 400, "This server does not answer to that name. Use --host to serve others."
        # Links from other sites are followed; requests by their scripts and forms are refused.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign and (method != "GET" or headers.get("sec-fetch-mode") != "navigate"):
            return 403, "Requests from other sites are not answered."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15:
            return 400, "The content-length is not a number."
        if int(length) > self.limits.body_bytes:
            return 413, too_large(self.limits)
        return None


def _name(host: str) -> str:
    """The name in a host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
