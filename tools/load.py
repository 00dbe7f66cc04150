"""Press the real server: many askers beside slow and idle connections, then SIGTERM while they ask. Loopback only.

    python tools/load.py                                    # 200 askers and 50 slow ones for 60 s, on a tiny model
    python tools/load.py out/vqa --askers 50 --seconds 10

What must hold: every request is answered, or told that the server is busy (503), within a bounded time; the memory of
the server does not grow after the first quarter; after SIGTERM it ends within 5 seconds, and no answer is cut off. The
tool prints what it counted, and ends with status 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

MOST_ASKERS, MOST_SECONDS = 1000, 600
LONGEST = 15.0  # seconds that an answer may take under this load
GROWTH = 64_000_000  # bytes that memory may vary by after the first quarter
COMMAND = [sys.executable, "-c", "from regard.cli import main; main()", "explore"]
SLOW = ("body", "idle", "headers", "reader")


@dataclass
class Counts:
    """What the askers saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    unanswered: int = 0  # requests whose connection ended before the first byte of an answer
    cut_off: int = 0  # answers that began and did not end
    closed: Counter[str] = field(default_factory=Counter)  # slow connections that the server closed

    def quantile(self, share: float) -> float:
        """The seconds that a share of the requests took at most."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class CutOff(Exception):
    """An answer that began and did not end."""


def request(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """The bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def question(name: str, content: bytes, text: str) -> bytes:
    """The request that asks about a picture; `name` of a sample, or of a file with `content`."""
    parts = [f'--b\r\ncontent-disposition: form-data; name="question"\r\n\r\n{text}\r\n'.encode()]
    if content:
        head = f'--b\r\ncontent-disposition: form-data; name="picture"; filename="{name}"\r\n\r\n'
        parts += [head.encode(), content, b"\r\n"]
    else:
        parts.append(f'--b\r\ncontent-disposition: form-data; name="sample"\r\n\r\n{name}\r\n'.encode())
    return request("POST", "/api/ask", b"".join([*parts, b"--b--\r\n"]), "multipart/form-data; boundary=b")


async def answer(reader: asyncio.StreamReader) -> int:
    """Read one answer whole, and return its status; a ConnectionError if there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError) as error:
        if getattr(error, "partial", b""):
            raise CutOff from error
        raise ConnectionError from error
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    try:
        if length:
            await reader.readexactly(int(length[1]))
        else:  # in chunks, or until the connection is closed
            await reader.readuntil(b"0\r\n\r\n") if b"chunked" in head.lower() else await reader.read()
    except (asyncio.IncompleteReadError, OSError) as error:
        raise CutOff from error
    return int(head.split(b" ", 2)[1])


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed at the end of the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def asker(port: int, requests: list[bytes], draw: random.Random, counts: Counts, end: asyncio.Event) -> None:
    """Ask again and again, on one connection as long as it lasts, until `end`."""
    while not end.is_set():
        try:
            async with connected(port) as (reader, writer):
                while not end.is_set():
                    began = time.monotonic()
                    writer.write(draw.choice(requests))
                    await writer.drain()
                    status = await answer(reader)
                    counts.statuses[status] += 1
                    counts.seconds.append(time.monotonic() - began)
                    if status == 503:
                        await asyncio.sleep(0.2)
        except CutOff:
            counts.cut_off += 1
        except OSError:
            counts.unanswered += 1
            await asyncio.sleep(0.2)


async def slow(port: int, kind: str, counts: Counts, end: asyncio.Event) -> None:
    """Hold a connection as long as the server lets it: a slow body, slow headers, nothing sent, nothing read."""
    body = question("a.png", bytes(100_000), "what is it")
    piece = {"body": body[:400], "idle": b"", "headers": b"GET / HTTP/1.1\r\n", "reader": request("GET", "/") * 20}
    while not end.is_set():
        held = False
        with contextlib.suppress(OSError):
            async with connected(port) as (reader, writer):
                held = True
                writer.write(piece[kind])
                while not end.is_set() and not reader.at_eof() and not writer.is_closing():
                    await asyncio.sleep(0.5)
                    if kind in ("body", "headers"):
                        writer.write(b"x")
                        await writer.drain()
                    if kind != "reader":
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(1000), 0.01)
        if not end.is_set():
            counts.closed[kind] += held
            await asyncio.sleep(0.1)


async def pressing(
    port: int, requests: list[bytes], askers: int, slow_ones: int, seconds: float, process: int, stop: bool
) -> tuple[Counts, list[int], float]:
    """Ask for some seconds; return what was counted, the memory of the server by the second, and the seconds it took to
    end after SIGTERM, which is sent while all are asking if `stop`."""
    import psutil

    counts, end, memory = Counts(), asyncio.Event(), []
    tasks = [asyncio.create_task(slow(port, SLOW[i % 4], counts, end)) for i in range(slow_ones)]
    await asyncio.sleep(min(1.0, seconds / 4))  # they are there first
    tasks += [asyncio.create_task(asker(port, requests, random.Random(i), counts, end)) for i in range(askers)]
    server, began = psutil.Process(process), time.monotonic()
    while time.monotonic() - began < seconds:
        await asyncio.sleep(min(1.0, seconds / 8))
        memory.append(server.memory_info().rss)
    ending = 0.0
    if stop:
        began, before = time.monotonic(), counts.unanswered
        server.terminate()
        while psutil.pid_exists(process) and server.status() != psutil.STATUS_ZOMBIE and ending < 60:
            await asyncio.sleep(0.02)
            ending = time.monotonic() - began
        counts.unanswered = before  # what comes after the end is answered by nobody
    end.set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts, memory, ending


def press(
    port: int, requests: list[bytes], *, askers: int, slow_ones: int, seconds: float, process: int, stop: bool = True
) -> tuple[Counts, list[int], float]:
    """See `pressing`; from code that is not asynchronous, in a thread, as its own may have an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        pressed = thread.submit(
            lambda: asyncio.run(pressing(port, requests, askers, slow_ones, seconds, process, stop))
        )
        return pressed.result()


def usual_requests(port: int) -> list[bytes]:
    """Questions about a sample and about a sent picture, the playground, the state, the page."""
    import urllib.request

    from PIL import Image

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/state", timeout=30) as got:
        state = json.load(got)
    picture = io.BytesIO()
    Image.effect_noise((320, 240), 80).convert("RGB").save(picture, "JPEG")
    words = " ".join((state["model"] or {}).get("words", [])[:3]) or "what is it"
    names = [sample["name"] for sample in state["samples"]]
    asked = [question(name, b"", words) for name in names[:3]]
    played = request("POST", "/api/playground", json.dumps({"blobs": [{"x": 0.3, "y": 0.4}]}).encode())
    return [
        *asked,
        question("a.jpg", picture.getvalue(), words),
        played,
        request("GET", "/api/state"),
        request("GET", "/"),
    ]


def started(run: Path | None, where: Path) -> tuple[subprocess.Popen[str], int]:
    """The server in a process of its own, and its port."""
    command = [*COMMAND, *([str(run)] if run else []), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return process, int(found[1])
    sys.exit(f"the server did not start: {process.communicate()[1]}")


def tiny_run(folder: Path) -> Path:
    """A model that is hardly trained, which answers in some milliseconds."""
    scenes, features, run = folder / "scenes", folder / "features", folder / "run"
    sizes = {"width": 16, "heads": 2, "layers": 1, "feed-forward": 32, "flat": 16, "fused": 24, "words": 8, "batch": 8}
    for words in (
        ["scenes", scenes, "--train", 40, "--val", 4, "--test", 4, "--pairs", 4, "--size", 32],
        ["features", scenes, "--backbone", "small", "--out", features],
        [
            "train",
            scenes,
            "--features",
            features,
            "--out",
            run,
            "--epochs",
            1,
            *(f"--{k}={v}" for k, v in sizes.items()),
        ],
    ):
        subprocess.run([*COMMAND[:-1], *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return run


def main() -> None:
    """Read the command line, press the server, print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, help="the folder of a model; default: a tiny one is made")
    parser.add_argument("--askers", type=int, default=200, help=f"default 200, at most {MOST_ASKERS}")
    parser.add_argument("--slow", type=int, default=50, help="slow and idle connections; default 50, at most 1000")
    parser.add_argument("--seconds", type=float, default=60.0, help=f"default 60, at most {MOST_SECONDS}")
    options = parser.parse_args()
    askers, slow_ones = min(options.askers, MOST_ASKERS), min(options.slow, MOST_ASKERS)
    with tempfile.TemporaryDirectory() as folder:
        run = options.run.resolve() if options.run else tiny_run(Path(folder))
        process, port = started(run, Path(folder))
        try:
            counts, memory, ending = press(
                port,
                usual_requests(port),
                askers=askers,
                slow_ones=slow_ones,
                seconds=min(options.seconds, MOST_SECONDS),
                process=process.pid,
            )
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    later = memory[len(memory) // 4 :]
    growth = max(later) - later[0]
    print(f"{askers} askers, {slow_ones} slow ones, {options.seconds:g} s: {sum(counts.statuses.values())} requests")
    print(f"statuses      {dict(sorted(counts.statuses.items()))}, without an answer {counts.unanswered}")
    median, most, longest = (counts.quantile(share) for share in (0.5, 0.99, 1.0))
    print(f"seconds       median {median:.3f}, 99 % {most:.3f}, longest {longest:.3f}")
    first, then, top = memory[0] / 1e6, later[0] / 1e6, max(later) / 1e6
    print(f"memory        {first:.0f} MB at first, {then:.0f} after a quarter, at most {top:.0f} after it")
    print(f"slow ones     closed by the server: {dict(sorted(counts.closed.items()))}")
    print(f"SIGTERM       ended in {ending:.2f} s with status {process.returncode}; answers cut off: {counts.cut_off}")
    wrong = [
        what
        for what, holds in {
            "other statuses than 200 and 503": set(counts.statuses) <= {200, 503},
            "requests without an answer": counts.unanswered == 0,
            f"an answer after more than {LONGEST} s": counts.quantile(1) <= LONGEST,
            f"memory grew by {growth / 1e6:.0f} MB": growth <= GROWTH,
            "more than 5 s to end": ending <= 5,
            "answers cut off": counts.cut_off == 0,
            f"another status at the end than that of SIGTERM: {said[-500:]}": process.returncode
            == 128 + signal.SIGTERM,
            f"a traceback: {said[-2000:]}": "Traceback" not in said,
        }.items()
        if not holds
    ]
    for line in wrong:
        print(f"wrong: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
