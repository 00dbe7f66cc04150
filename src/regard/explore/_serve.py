"""Starting the server."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from regard._problem import Problem

if TYPE_CHECKING:
    from fastapi import FastAPI

    from regard.explore._limits import Limits

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
HINT = "There is no model yet: make demo trains one; or give the folder of another, regard explore CHECKPOINT."


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def explore_app(checkpoint: Path | None, host: str, limits: Limits | None = None) -> FastAPI:
    """The application with the model of a checkpoint, or without one and a hint how to get it."""
    from regard.explore._app import create_app
    from regard.explore._limits import Limits
    from regard.explore._samples import samples

    limits = limits or Limits()
    hosts = LOCAL | {host} if is_local(host) else None
    if checkpoint is None:
        return create_app(None, samples(), limits, hosts=hosts, hint=HINT)
    from regard.vqa.predict import Predictor

    predictor, pictures = Predictor.load(checkpoint), samples()
    first = next(iter(pictures.values()))
    predictor.ask(first.picture, first.questions[0])  # once before a visitor does
    return create_app(predictor, pictures, limits, hosts=hosts, model=checkpoint.name)


def serve(
    checkpoint: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the page until interrupted; `ready` is told the address when it can be opened.

    >>> import socket
    >>> with socket.create_server(("127.0.0.1", 0)) as taken:
    ...     serve(port=taken.getsockname()[1])
    Traceback (most recent call last):
    regard._problem.Problem: port ... on 127.0.0.1 cannot be used. Choose others with --port and --host.
    """
    import torch
    import uvicorn

    from regard.explore._asked import Blob, Play
    from regard.explore._playground import play

    # The workers are the parallelism; threads inside each operation would only get in each other's way.
    torch.set_num_threads(1)
    app = explore_app(checkpoint, host)
    play(Play(blobs=[Blob(x=0.5, y=0.5)]))  # the first call of many an operation is slow: not in front of a visitor
    server = uvicorn.Server(
        uvicorn.Config(app, host, port, log_level="warning", limit_concurrency=500, timeout_keep_alive=10)
    )
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Problem(f"port {port} on {host} cannot be used. Choose others with --port and --host.") from error
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{listening.getsockname()[1]}")
    server.run([listening])
