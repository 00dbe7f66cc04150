"""What tests of the page in a browser share: opening it, waiting, reading what is drawn."""

import threading
import time
from contextlib import contextmanager
from urllib.parse import parse_qs, urlparse

import uvicorn


@contextmanager
def served(*apps):
    """The addresses of applications, each on a free port."""
    running = []
    for app in apps:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
    while not all(server.started for server, _ in running):
        time.sleep(0.01)
    try:
        yield [f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/" for server, _ in running]
    finally:
        for server, thread in running:
            server.should_exit = True
            thread.join()


@contextmanager
def watched(browser, *addresses, refusals=False, **options):
    """A page that must load from these addresses alone and report no error; `refusals`: 422 is expected."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | options)
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.troubles, page.asked, page.pending = [], [], set()
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda line: page.troubles.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: (page.asked.append(request.url), page.pending.add(request)))
    for end in ("requestfinished", "requestfailed"):
        page.on(end, lambda request: page.pending.discard(request))
    try:
        yield page
    finally:
        context.close()
    assert not [t for t in page.troubles if not (refusals and "422" in t)]  # the browser notes every refusal
    assert all(url.startswith((*addresses, "data:", "blob:")) for url in page.asked)


def opened(page, address, view=""):
    page.goto(address + view)
    page.wait_for_selector("html[data-ready]")
    return page


def until(page, condition, seconds=30):
    """Wait for a condition in JavaScript. Playwright's own way to wait needs eval, which the page forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(30)


def quiet(page):
    """Wait until all requests are answered, and those that they give rise to."""
    idle = 0
    deadline = time.monotonic() + 30
    while idle < 3:
        page.wait_for_timeout(50)
        idle = 0 if page.pending else idle + 1
        assert time.monotonic() < deadline, page.pending


def drawn(page, canvas):
    """What is on a canvas, as bytes that can be compared."""
    return page.locator(canvas).evaluate("c => c.toDataURL()")


def settled(page, canvas, before, seconds=30):
    """Wait until a canvas is no longer what it was."""
    deadline = time.monotonic() + seconds
    while drawn(page, canvas) == before:
        assert time.monotonic() < deadline, f"{canvas} did not change"
        page.wait_for_timeout(30)


def state(page):
    """What the address holds."""
    return {key: value[0] for key, value in parse_qs(urlparse(page.url).fragment).items()}


def answered(page, question):
    """Wait until the answer to a question is shown."""
    until(page, f"document.getElementById('ask-json').textContent.includes({question!r})")
    until(page, "!document.querySelector('#answer').classList.contains('old')")
