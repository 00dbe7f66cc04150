"""The page in a real browser: three tabs, with the mouse, the keyboard and on a phone."""

import io
import json
import re
import shutil
import threading
import time
from urllib.parse import parse_qs, urlparse

import pytest
import uvicorn
from fake_model import FakePredictor
from PIL import Image

from regard.explore import create_app
from regard.explore._samples import drawn_scenes

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium here: apt-get install chromium, to test the page in a browser"
)


@pytest.fixture(scope="module")
def model():
    return FakePredictor()


@pytest.fixture(scope="module")
def address(model):
    with_model, without = (create_app(m, samples(), hint="make demo trains one.") for m in (model, None))
    running = []
    for app in (with_model, without):
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
    while not all(server.started for server, _ in running):
        time.sleep(0.01)
    yield [f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/" for server, _ in running]
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.troubles, page.asked = [], []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda line: page.troubles.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    context.close()
    assert not page.troubles
    assert all(url.startswith((*address, "data:", "blob:")) for url in page.asked)


def opened(page, address, view=""):
    page.goto(address + view)
    page.wait_for_selector("html[data-ready]")
    return page


def until(page, condition, seconds=15):
    """Wait for a condition in JavaScript. Playwright's own way to wait needs eval, which the page forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(30)


def drawn(page, canvas):
    """What is on a canvas, as bytes that can be compared."""
    return page.locator(canvas).evaluate("c => c.toDataURL()")


def settled(page, canvas, before, seconds=10):
    """Wait until a canvas is no longer what it was."""
    deadline = time.monotonic() + seconds
    while drawn(page, canvas) == before:
        assert time.monotonic() < deadline, f"{canvas} did not change"
        page.wait_for_timeout(30)


def state(page):
    return {key: value[0] for key, value in parse_qs(urlparse(page.url).fragment).items()}


def filled(page, panel="paraboloid"):
    until(page, f"document.querySelector('#panel-{panel} dd') !== null")


def figures(page, panel):
    return page.locator(f"#panel-{panel} dd").all_text_contents()


class TestAsk:
    def test_choose_ask_and_switch_attention(self, page, address):
        opened(page, address[0])
        page.get_by_role("radio", name="scene-3").click()
        page.get_by_label("Question", exact=True).fill("is it bright?")
        page.get_by_role("button", name="Ask", exact=True).click()
        until(page, "document.getElementById('ask-json').textContent.includes('is it bright?')")
        assert page.locator("#answer-text").text_content() in ("yes", "no")
        assert page.locator("#answer-confidence").text_content() == "75.0 % sure"
        loads = len([u for u in page.asked if u.endswith("app.js")])
        seen = {drawn(page, "#ask-canvas")}
        for kind in ("continuous softmax", "continuous sparsemax", "2 components"):
            before = drawn(page, "#ask-canvas")
            page.get_by_role("radio", name=f"{kind} attention", exact=True).click()
            settled(page, "#ask-canvas", before)
            assert json.loads(page.locator("#ask-json").text_content())["attention"] == kind
            seen.add(drawn(page, "#ask-canvas"))
        assert len(seen) == 4
        assert len([u for u in page.asked if u.endswith("app.js")]) == loads == 1
        assert state(page)["attention"] == "2 components"

    def test_the_json_on_the_page_is_the_models_own(self, page, address, model):
        opened(page, address[0], "#tab=ask&sample=scene-2&question=what+is+it%3F&attention=TVmax")
        page.wait_for_selector("#answer:not([hidden])")
        shown = json.loads(page.locator("#ask-json").text_content())
        wanted = model.ask(samples()["scene-2"].picture, "what is it?", "TVmax").to_json()
        assert shown == json.loads(json.dumps(wanted))

    def test_upload_a_picture(self, page, address):
        opened(page, address[0])
        page.wait_for_selector("#answer:not([hidden])")
        before = drawn(page, "#ask-canvas")
        file = io.BytesIO()
        Image.new("RGB", (120, 60), "white").save(file, "PNG")
        page.get_by_label("Or one of your own").set_input_files(
            {"name": "white.png", "mimeType": "image/png", "buffer": file.getvalue()}
        )
        until(page, "document.getElementById('answer-text').textContent === 'yes'")
        settled(page, "#ask-canvas", before)
        assert page.locator("#ask-canvas").evaluate("c => c.height / c.width") == 0.5
        assert "sample" not in state(page)

    def test_a_broken_picture_is_a_message(self, page, address):
        opened(page, address[0])
        page.wait_for_selector("#answer:not([hidden])")
        page.get_by_label("Or one of your own").set_input_files(
            {"name": "a.png", "mimeType": "image/png", "buffer": b"<svg><script>alert(1)</script></svg>"}
        )
        until(page, "document.getElementById('message').textContent.includes('the picture is none of')")
        assert not page.locator("#answer").is_visible()
        page.troubles[:] = [t for t in page.troubles if "422" not in t]  # the browser notes every refusal

    def test_progress_is_shown_while_an_answer_takes_long(self, page, address, model):
        opened(page, address[0])
        page.wait_for_selector("#answer:not([hidden])")
        model.hold.set()
        try:
            page.get_by_role("radio", name="TVmax").click()
            page.get_by_role("progressbar").wait_for(state="visible", timeout=3000)
        finally:
            model.hold.clear()
        page.get_by_role("progressbar").wait_for(state="hidden")

    def test_without_a_model_the_playground_is_offered(self, page, address):
        opened(page, address[1])
        page.get_by_text("make demo trains one.").wait_for()
        page.get_by_role("button", name="Open the playground").click()
        filled(page)
        assert state(page)["tab"] == "playground"


class TestPlayground:
    @pytest.mark.parametrize(
        ("slider", "panel"),
        [
            ("alpha", "entmax"),
            ("gamma", "tvmax"),
            ("components", "mixture"),
            ("functions", "effective-gaussian"),
            ("eps", "sinkhorn"),
        ],
    )
    def test_a_slider_changes_picture_and_numbers(self, page, address, slider, panel):
        opened(page, address[0], "#tab=playground")
        filled(page)
        page.wait_for_timeout(200)
        picture, numbers = drawn(page, f"#panel-{panel} canvas"), figures(page, panel)
        control = page.locator(f"[id='p.{slider}']")
        control.focus()
        for _ in range(4):
            page.keyboard.press("PageUp")
        settled(page, f"#panel-{panel} canvas", picture)
        assert figures(page, panel) != numbers
        assert f"p.{slider}" in state(page)

    def test_drag_a_blob_and_draw_a_box(self, page, address):
        opened(page, address[0], "#tab=playground")
        filled(page)
        before, numbers = drawn(page, "#panel-gaussian canvas"), figures(page, "gaussian")
        blob, field = (
            page.get_by_role("button", name=re.compile("^Blob 1")),
            page.locator("#field-canvas").bounding_box(),
        )
        blob.hover()
        page.mouse.down()
        page.mouse.move(field["x"] + 0.8 * field["width"], field["y"] + 0.2 * field["height"], steps=5)
        page.mouse.up()
        settled(page, "#panel-gaussian canvas", before)
        assert blob.get_attribute("aria-label").startswith("Blob 1 at 0.80, 0.20")
        page.wait_for_timeout(300)
        numbers = figures(page, "softmax")
        page.mouse.move(field["x"] + 0.05 * field["width"], field["y"] + 0.9 * field["height"])
        page.mouse.down()
        page.mouse.move(field["x"] + 0.15 * field["width"], field["y"] + 0.98 * field["height"], steps=3)
        page.mouse.up()
        until(page, f"document.querySelectorAll('#panel-softmax dd')[2].textContent !== '{numbers[2]}'")
        assert figures(page, "softmax")[:2] == numbers[:2]

    def test_keyboard_alone(self, page, address):
        opened(page, address[0])
        page.get_by_role("tab", name="Ask").focus()
        page.keyboard.press("ArrowRight")
        filled(page)
        page.wait_for_timeout(300)
        before = drawn(page, "#panel-sparsemax canvas")
        page.get_by_role("button", name=re.compile("^Blob 2")).focus()
        for key in ("ArrowLeft", "ArrowUp", "+", "]"):
            page.keyboard.press(key)
        settled(page, "#panel-sparsemax canvas", before)
        assert "0.70_0.60".replace("0.70", "0.7").replace("0.60", "0.6") in state(page)["blobs"]
        page.keyboard.press("Delete")
        assert page.locator(".handle:not(.box)").count() == 1

    def test_a_link_opens_the_same_view(self, page, address):
        view = "#tab=playground&blobs=0.1_0.2_0.1_4&box=0_0_0.5_0.5&p.alpha=2.5&p.eps=1"
        opened(page, address[0], view)
        filled(page)
        page.wait_for_timeout(200)
        first = drawn(page, "#panel-entmax canvas")
        link = page.url
        page.goto("about:blank")
        opened(page, link)
        filled(page)
        page.wait_for_timeout(200)
        assert drawn(page, "#panel-entmax canvas") == first
        assert page.locator("[id='p.alpha']").input_value() == "2.5"
        assert page.locator(".handle:not(.box)").count() == 1


class TestTransport:
    @pytest.mark.parametrize("kind", ["points", "histograms", "SwAV assignment"])
    def test_eps_changes_plan_and_numbers(self, page, address, kind):
        opened(page, address[0], "#tab=transport")
        before = drawn(page, "#plan-canvas")
        if kind != "points":
            page.get_by_label(kind).check()
            settled(page, "#plan-canvas", before)
        until(page, "document.querySelector('#move-numbers dd') !== null")
        page.wait_for_timeout(500)
        before, numbers = drawn(page, "#plan-canvas"), page.locator("#move-numbers dd").all_text_contents()
        page.get_by_role("slider", name="eps").focus()
        for _ in range(3):
            page.keyboard.press("PageDown")
        settled(page, "#plan-canvas", before)
        page.wait_for_timeout(300)
        assert page.locator("#move-numbers dd").all_text_contents() != numbers

    def test_a_point_moves_by_keyboard_and_stays_in_the_link(self, page, address):
        opened(page, address[0], "#tab=transport")
        until(page, "document.querySelector('#move-numbers dd') !== null")
        before = drawn(page, "#move-canvas")
        page.locator("#move-canvas").focus()
        for key in (" ", "ArrowRight", "ArrowDown"):
            page.keyboard.press(key)
        settled(page, "#move-canvas", before)
        assert "set" in state(page)


@pytest.mark.parametrize("tab", ["ask", "playground", "transport"])
def test_fits_a_phone_and_every_control_has_a_name(browser, address, tab):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    opened(page, address[0], f"#tab={tab}")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input, button, canvas')].filter(e => e.offsetParent && !(
            e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim() || e.closest('.scale')
        )).map(e => e.outerHTML)"""
    )
    assert nameless == []
    context.close()


def test_the_first_view_is_small(browser, address):
    context = browser.new_context()
    page = context.new_page()
    sizes = []
    page.on(
        "requestfinished",
        lambda r: sizes.append(sum(r.sizes()[k] for k in ("responseBodySize", "responseHeadersSize"))),
    )
    opened(page, address[0])
    page.wait_for_load_state("networkidle")
    assert 10_000 < sum(sizes) < 300_000
    context.close()
