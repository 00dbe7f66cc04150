"""The server of the page."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from regard._problem import Problem
from regard.training._device import choose_device

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from regard.explore._limits import Limits
    from regard.explore._look import Looking

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
HINT = (
    "To ask a model about pictures: regard demo trains one in a few minutes, regard vqa PICTURES TABLE one on your own "
    "pictures and questions; then regard explore FOLDER."
)


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def explore_app(
    checkpoint: Path | None,
    host: str,
    limits: Limits | None = None,
    looking: Looking | None = None,
    device: torch.device | str = "cpu",
) -> FastAPI:
    """The application with the model of a checkpoint, or with a hint how to get one.

    `looking`: what looks at pictures; default patches by their colours.
    `device`: where the model answers; default "cpu".
    """
    from regard.explore._app import create_app
    from regard.explore._limits import Limits
    from regard.explore._runs import run_of
    from regard.explore._samples import sample_pictures

    limits = limits or Limits()
    hosts = LOCAL | {host} if is_local(host) else None
    if checkpoint is None:
        return create_app(None, None, limits, hosts=hosts, hint=HINT, looking=looking)
    import torch

    from regard.vqa.predict import Predictor

    predictor, run = Predictor.load(checkpoint).to(device), run_of(checkpoint)
    samples = sample_pictures(run, predictor.words, predictor.answers)
    if predictor.words.known:  # warm-up, since the first call is slow, in a word of whatever language
        predictor.ask(torch.zeros(3, 64, 64, dtype=torch.uint8), predictor.words.known[0])
    words = predictor.some_words(12)
    name = run.resolve().name
    return create_app(predictor, samples, limits, hosts=hosts, model=name, words=words, looking=looking)


def serve(
    checkpoint: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] = print,
    look: str | None = None,
    device: str = "auto",
) -> None:
    """Serve the page until interrupted.

    `checkpoint`: the folder of a model that answers questions; default None, no model.
    `host`: the address to listen on; default this machine only.
    `port`: 0 for any free port; default 8000.
    `ready`: called with the URL once the page can be opened; default print.
    `look`: a vision model of Hugging Face to look at pictures with: a folder, or a name in the local cache; default
    None, patches by their colours.
    `device`: where the model answers, as in `regard train`; default "auto".

    >>> import socket
    >>> with socket.create_server(("127.0.0.1", 0)) as taken:
    ...     serve(port=taken.getsockname()[1])
    Traceback (most recent call last):
    regard._problem.Problem: port ... on 127.0.0.1 cannot be used. Choose others with --port and --host.
    """
    import torch

    from regard.explore._connections import Server
    from regard.explore._limits import Limits
    from regard.explore._playground import play
    from regard.explore._requests import Blob, LookAt, Play
    from regard.explore._samples import photograph

    # The worker threads are the parallelism; more threads inside each operation would compete with them.
    torch.set_num_threads(1)
    limits = Limits()
    place = choose_device(device, needs_float64=True)
    looking = _looking(look)
    app = explore_app(checkpoint, host, limits, looking, place)
    play(Play(blobs=[Blob(x=0.5, y=0.5)]))  # warm-up
    cat = photograph()
    looking.look(lambda: cat.picture, f"sample {cat.name}", LookAt())  # warm-up, and the first view of the page
    server = Server(app, host, limits, app.state.stop)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Problem(f"port {port} on {host} cannot be used. Choose others with --port and --host.") from error
    url_host = f"[{host}]" if ":" in host else host
    ready(f"http://{url_host}:{listening.getsockname()[1]}")
    server.run([listening])


def _looking(name: str | None) -> Looking:
    """What looks at pictures; with a model if it has a name."""
    from regard.explore._look import Looking

    if name is None:
        return Looking()
    from regard.looking.load import load_vision

    return Looking(load_vision(name), Path(name).name)
