"""The web page and its server under load: `python -m benchmarks explore`.

Starts `regard explore` on a model (REGARD_MODEL; default the one of `make demo`) and measures: 50 concurrent clients
for 60 s (REGARD_SECONDS), 500 malformed requests, server time per answer, and the first view in a browser.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.harness import RESULTS, installed

MODEL = Path(os.environ.get("REGARD_MODEL", "out/demo/models/continuous-softmax-0"))
ASKERS, SECONDS = 50, float(os.environ.get("REGARD_SECONDS", "60"))
COMMAND = "from regard.cli import main; main()"


def main() -> None:
    if not MODEL.exists():
        print(f"no model in {MODEL}: run make demo first, or set REGARD_MODEL\n")
        return
    server = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "explore", str(MODEL), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        began = time.perf_counter()
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())[0]  # type: ignore[index]
        up = time.perf_counter() - began
        measured: dict[str, Any] = {"seconds until the server is up": round(up, 2)}
        measured |= one_after_another(address)
        measured |= first_view(address)
        measured |= asyncio.run(many_at_once(address))
        measured |= malformed(address, psutil.Process(server.pid))
    finally:
        server.terminate()
        server.wait()
    for name, value in measured.items():
        print(f"| {name} | {value} |")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": installed("torch")}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "explore.json").write_text(json.dumps({"machine": machine, "measured": measured}, indent=1) + "\n")


def form(sample: str, question: str, attention: str) -> dict[str, Any]:
    return {"data": {"question": question, "sample": sample, "attention": attention}, "files": {"none": (None, "")}}


def work(answer: httpx.Response) -> float:
    """Milliseconds that the server worked on an answer, by its Server-Timing header."""
    return float(answer.headers["server-timing"].rpartition("=")[2])


def one_after_another(address: str) -> dict[str, Any]:
    """Server time per answer, for each attention, without other load."""
    state = httpx.get(f"{address}/api/state").json()
    asked = [(s["name"], q["text"]) for s in state["samples"] for q in s["questions"][:3]]
    times: dict[str, list[float]] = {}
    for kind in state["model"]["attentions"]:
        for sample, question in asked[:8]:
            answer = httpx.post(f"{address}/api/ask", **form(sample, question, kind), timeout=30)
            assert answer.status_code == 200, answer.text
            times.setdefault(kind, []).append(work(answer))
    everything = sorted(t for ts in times.values() for t in ts)
    slowest = max(times, key=lambda kind: statistics.median(times[kind]))
    return {
        "server time of an answer, median of all attentions, ms": round(statistics.median(everything), 1),
        "the same, 95th percentile, ms": round(everything[int(0.95 * len(everything))], 1),
        f"the same, slowest attention ({slowest}), median, ms": round(statistics.median(times[slowest]), 1),
    }


async def many_at_once(address: str) -> dict[str, Any]:
    """Clients that ask again as soon as they are answered, and wait a little when the server is busy."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=ASKERS), timeout=60) as client:
        state = (await client.get(f"{address}/api/state")).json()
        kinds = state["model"]["attentions"]
        asked = [(s["name"], q["text"]) for s in state["samples"] for q in s["questions"][:3]]
        answered: list[float] = []
        statuses: dict[int, int] = {}
        end = time.perf_counter() + SECONDS

        async def asker(number: int) -> None:
            draw = random.Random(number)
            while time.perf_counter() < end:
                sample, question = draw.choice(asked)
                began = time.perf_counter()
                answer = await client.post(f"{address}/api/ask", **form(sample, question, draw.choice(kinds)))
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                if answer.status_code == 200:
                    answered.append(1e3 * (time.perf_counter() - began))
                else:
                    await asyncio.sleep(0.2 + 0.3 * draw.random())

        await asyncio.gather(*(asker(i) for i in range(ASKERS)))
    answered.sort()
    return {
        f"{ASKERS} askers for {SECONDS:.0f} s: answers by status": statuses,
        "answers a second": round(len(answered) / SECONDS, 1),
        "median wait, ms": round(statistics.median(answered)),
        "95th percentile of the wait, ms": round(answered[int(0.95 * len(answered))]),
    }


def malformed(address: str, process: psutil.Process) -> dict[str, Any]:
    """500 requests with something wrong, from a fixed seed; memory before the second half and after it."""
    draw = random.Random(8)
    statuses: dict[int, int] = {}
    grown = []
    with httpx.Client(timeout=30) as client:
        for number in range(500):
            if number in (100, 300):
                grown.append(process.memory_info().rss)
            size = draw.choice([0, 10, 1000, 100_000])
            path = draw.choice(["ask", "playground", "transport", "assign"])
            kind = draw.choice(
                ["application/json", "multipart/form-data; boundary=b", "multipart/form-data", "text/plain"]
            )
            wrong = draw.choice([b"", b"{", b"[" * 5000, b'{"blobs": NaN}', b"--b\r\n\r\n", b"\x89PNG\r\n\x1a\n"])
            picture = b"\x89PNG\r\n\x1a\n" + draw.randbytes(size)
            if draw.random() < 0.4:
                got = client.post(f"{address}/api/ask", data={"question": "q"}, files={"picture": ("a.png", picture)})
            else:
                body = wrong + draw.randbytes(size)
                got = client.post(f"{address}/api/{path}", content=body, headers={"content-type": kind})
            statuses[got.status_code] = statuses.get(got.status_code, 0) + 1
        grown.append(process.memory_info().rss)
    return {
        "500 malformed requests: answers by status": dict(sorted(statuses.items())),
        "5xx among them": sum(n for status, n in statuses.items() if status >= 500),
        "memory of the server after 100, 300 and 500 of them, MB": [round(rss / 1e6, 1) for rss in grown],
    }


def first_view(address: str) -> dict[str, Any]:
    """Bytes and time of the first view, in a browser with an empty cache: until every control works."""
    browser = shutil.which("chromium")
    if browser is None:
        return {"first view": "not measured: there is no chromium"}
    from playwright.sync_api import sync_playwright

    times, sizes = [], []
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for _ in range(5):
            page = chromium.new_context().new_page()
            seen: list[int] = []
            page.on("requestfinished", lambda r, seen=seen: seen.append(
                r.sizes()["responseBodySize"] + r.sizes()["responseHeadersSize"]))  # fmt: skip
            began = time.perf_counter()
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            times.append(1e3 * (time.perf_counter() - began))
            page.wait_for_load_state("networkidle")
            sizes.append(sum(seen))
            page.context.close()
        chromium.close()
    return {
        "first view, transferred, kB": round(max(sizes) / 1e3, 1),
        "first view until an answer is shown, median of 5, ms": round(statistics.median(times)),
    }
