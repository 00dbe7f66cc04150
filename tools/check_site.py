"""Open every page of the built site in a browser: no external resources, nothing missing, every formula rendered.

python tools/check_site.py build/site [--shots FOLDER]

It does not depend on the site generator, so that it checks the site of each by the same rules.
"""

import argparse
import functools
import http.server
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

WIDTHS = {"wide": 1280, "phone": 390}
# The focus is in an input field, or, with Zensical, in an element that contains one.
TYPING = "['INPUT', 'DIV'].includes(document.activeElement.tagName)"
TIMEOUT = 180_000  # milliseconds: the machine may be busy
# What people type into the search, and the page that must be among the results.
SEARCHED = {
    "sparsemax": "reference/regard.html#regard.sparsemax",
    "cuda": "guides/gpu.html",
    "heatmap": "guides/reading.html",
    "migrate": "guides/coming-from.html",
    "grad-cam": "faq.html",
    "saliency": "faq.html",
    "flash attention": "guides/coming-from.html",
    "timm": "guides/coming-from.html",
    "registers": "guides/vit.html",
    "out of memory": "guides/gpu.html",
    "how long": "guides/presets.html",
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, without a log."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def problems(page: Any, address: str, site: str) -> tuple[list[str], int]:
    """The problems of one page, and the number of its formulas."""
    messages: list[str] = []

    def on_request(request: Any) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            messages.append(f"asks for {request.url}")

    def on_response(response: Any) -> None:
        if response.status >= 400:
            messages.append(f"{response.status} for {response.url}")

    def on_console(message: Any) -> None:
        if message.type == "error":
            messages.append(f"error in the page: {message.text}")

    listeners = {"request": on_request, "response": on_response, "console": on_console}
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address)
    page.wait_for_selector("body[data-formulas=drawn]")
    page.wait_for_load_state("networkidle")
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    if message := page.get_attribute("body", "data-formula-error"):
        messages.append(f"a formula cannot be drawn: {message}")
    if raw := page.locator(".arithmatex:not(:has(.katex))").count():
        messages.append(f"{raw} formulas were not drawn")
    if silent := page.locator("article img:not([alt]), article img[alt='']").count():
        messages.append(f"{silent} pictures without alternative text")
    if broken := page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).length"):
        messages.append(f"{broken} pictures cannot be shown")
    if (over := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
        messages.append(f"is {over} pixels wider than the screen")
    return messages, page.locator(".arithmatex .katex").count()


def searches(page: Any, site: str) -> list[str]:
    """Problems of the site's search, which the key / opens: it must find the pages of SEARCHED."""
    from playwright.sync_api import TimeoutError

    missed = []
    for words, target in SEARCHED.items():
        page.set_default_timeout(TIMEOUT)
        page.goto(f"{site}/index.html")
        page.wait_for_load_state("networkidle")
        page.keyboard.press("/")
        page.wait_for_function(TYPING)
        page.keyboard.type(words)
        try:
            page.wait_for_selector(f"a[href*='{target}']:visible", timeout=TIMEOUT / 6)
        except TimeoutError:
            missed.append(f"the search for {words!r} does not find {target}")
    return missed


def not_indexed(index: dict[str, Any]) -> list[str]:
    """The words of SEARCHED that an index of mkdocs does not have on their page.

    >>> entries = [{"location": target, "title": "", "text": words} for words, target in SEARCHED.items()]
    >>> not_indexed({"docs": entries}), not_indexed({"docs": entries[1:]})
    ([], ["'sparsemax' is not in the index on reference/regard.html#regard.sparsemax"])
    """
    texts = [(entry["location"], f"{entry['title']} {entry['text']}".lower()) for entry in index["docs"]]
    return [
        f"{words!r} is not in the index on {target}"
        for words, target in SEARCHED.items()
        if not any(place.startswith(target) and words in text for place, text in texts)
    ]


def main() -> None:
    """Check all pages, and print their number and their problems."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("site", type=Path, help="folder of the built site")
    arguments.add_argument("--shots", type=Path, help="folder for a screenshot of each page (default none)")
    options = arguments.parse_args()
    pages = sorted(p.relative_to(options.site) for p in options.site.rglob("*.html") if p.name != "404.html")
    if not pages:
        sys.exit(f"{options.site} holds no pages. Build them: make docs")
    if (browser := shutil.which("chromium")) is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=options.site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, count, formulas = f"http://127.0.0.1:{server.server_port}", 0, 0
    if (index := options.site / "search" / "search_index.json").is_file():  # of mkdocs; Zensical has another form
        for problem in not_indexed(json.loads(index.read_text())):
            count += 1
            print(problem)
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for kind, width in WIDTHS.items():
            page = chromium.new_page(viewport={"width": width, "height": 900})
            page.set_default_timeout(TIMEOUT)
            for name in pages:
                messages, drawn = problems(page, f"{address}/{name}", address)
                formulas += drawn if kind == "wide" else 0
                count += len(messages)
                for problem in messages:
                    print(f"{name} ({kind}): {problem}")
                if options.shots:
                    options.shots.mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=options.shots / f"{str(name).replace('/', '-')}.{kind}.png")
            page.close()
        page = chromium.new_page()
        for problem in searches(page, address):
            count += 1
            print(problem)
        chromium.close()
    print(f"{len(pages)} pages in {len(WIDTHS)} widths, {formulas} formulas, {count} problems")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
