"""Open every page of the built site in a real browser: nothing from elsewhere, nothing missing, every formula drawn.

python tools/check_site.py build/site [--shots FOLDER]

It knows nothing of the builder, so that it checks the site of each by the same rules.
"""

import argparse
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

WIDTHS = {"wide": 1280, "phone": 390}
# The cursor is in a field, or, with Zensical, in an element that has a field of its own inside.
TYPING = "['INPUT', 'DIV'].includes(document.activeElement.tagName)"
PATIENCE = 180_000  # milliseconds: a machine may be busy with other things


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a word."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def problems(page: Any, address: str, own: str) -> tuple[list[str], int]:
    """What is wrong with one page, and how many formulas it has."""
    found: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith((own, "data:", "blob:")):
            found.append(f"asks for {request.url}")

    def answered(response: Any) -> None:
        if response.status >= 400:
            found.append(f"{response.status} for {response.url}")

    def said(message: Any) -> None:
        if message.type == "error":
            found.append(f"error in the page: {message.text}")

    listeners = {"request": asked, "response": answered, "console": said}
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address)
    page.wait_for_selector("body[data-formulas=drawn]")
    page.wait_for_load_state("networkidle")
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    if message := page.get_attribute("body", "data-formula-error"):
        found.append(f"a formula cannot be drawn: {message}")
    if raw := page.locator(".arithmatex:not(:has(.katex))").count():
        found.append(f"{raw} formulas were not drawn")
    if silent := page.locator("article img:not([alt]), article img[alt='']").count():
        found.append(f"{silent} pictures without alternative text")
    if broken := page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).length"):
        found.append(f"{broken} pictures cannot be shown")
    if (over := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
        found.append(f"is {over} pixels wider than the screen")
    return found, page.locator(".arithmatex .katex").count()


def searches(page: Any, own: str) -> list[str]:
    """Whether the search of the site, which a slash opens, finds the page of a function. It works in a worker."""
    from playwright.sync_api import TimeoutError

    page.set_default_timeout(PATIENCE)
    page.goto(f"{own}/index.html")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("/")
    page.wait_for_function(TYPING)
    page.keyboard.type("sparsemax")
    try:
        page.wait_for_selector("a[href*='reference/regard.html#regard.sparsemax']:visible")
    except TimeoutError:
        return ["the search finds no sparsemax"]
    return []


def main() -> None:
    """Check all pages, and say how many there were."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("site", type=Path)
    arguments.add_argument("--shots", type=Path, help="also write a picture of each page here")
    given = arguments.parse_args()
    pages = sorted(p.relative_to(given.site) for p in given.site.rglob("*.html") if p.name != "404.html")
    if not pages:
        sys.exit(f"{given.site} holds no pages. Build them: make docs")
    if (browser := shutil.which("chromium")) is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=given.site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own, wrong, formulas = f"http://127.0.0.1:{server.server_port}", 0, 0
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for kind, width in WIDTHS.items():
            page = chromium.new_page(viewport={"width": width, "height": 900})
            page.set_default_timeout(PATIENCE)
            for name in pages:
                found, drawn = problems(page, f"{own}/{name}", own)
                formulas += drawn if kind == "wide" else 0
                wrong += len(found)
                for problem in found:
                    print(f"{name} ({kind}): {problem}")
                if given.shots:
                    given.shots.mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=given.shots / f"{str(name).replace('/', '-')}.{kind}.png")
            page.close()
        page = chromium.new_page()
        for problem in searches(page, own):
            wrong += 1
            print(problem)
        chromium.close()
    print(f"{len(pages)} pages in {len(WIDTHS)} widths, {formulas} formulas, {wrong} problems")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
