"""The page in a real browser, for a model that was trained on German questions."""

import re

import pytest
from browsing import answered, drawn, opened, served, settled, state, until, watched

from regard.explore._serve import explore_app


@pytest.fixture(scope="module")
def address(german_run, browser):
    with served(explore_app(german_run, "127.0.0.1")) as (address,):
        yield address


def test_opens_on_its_own_pictures_with_the_answers_of_people(browser, address):
    with watched(browser, address) as page:
        opened(page, address)
        page.wait_for_selector("#answer:not([hidden])")
        assert page.locator("#samples input").count() == 8
        assert page.locator("#question").input_value() == "Welche Farbe hat die größte Scheibe?"
        assert page.locator("#truth").text_content() in {f"asked of people: {c}" for c in ("rot", "grün", "weiß")}
        assert page.locator("#verdict").text_content() in ("✓ right", "✗ wrong")
        assert page.locator("#words s").count() == 0
        button = page.get_by_role("button", name="Ist die Scheibe über der Linie?")
        button.click()
        answered(page, "Ist die Scheibe")
        assert page.locator("#truth").text_content() in ("asked of people: ja", "asked of people: nein")
        assert state(page)["question"] == "Ist die Scheibe über der Linie?"
        link = page.url
        page.goto("about:blank")
        opened(page, link)
        answered(page, "Ist die Scheibe")


def test_unknown_words_in_every_script(browser, address):
    with watched(browser, address, refusals=True) as page:
        opened(page, address, "#question=Welche+Farbe+hat+das+%D7%94%D7%97%D7%AA%D7%95%D7%9C+Stra%C3%9Fenk%C3%A4tzchen")
        page.wait_for_selector("#answer:not([hidden])")
        struck = page.locator("#words s").all_text_contents()
        assert struck == ["das (unknown)", "החתול (unknown)", "straßenkätzchen (unknown)"]
        page.get_by_label("Question", exact=True).fill("ما لون القرص؟")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('answer-text').textContent === 'No answer'")
        assert page.locator("#question").evaluate("e => getComputedStyle(e).direction") == "rtl"
        assert page.locator("#known-words button").all_text_contents()
        page.get_by_role("button", name="größte", exact=True).click()
        page.keyboard.press("Enter")
        until(page, "!document.getElementById('info').hidden")


# Whether the result, which stays in sight, leaves the element with the focus free, and that is on the screen.
NOT_COVERED = """() => {
    const focused = document.activeElement.getBoundingClientRect();
    const result = document.querySelector('.seen').getBoundingClientRect();
    return result.bottom <= focused.top + 1 && focused.bottom <= innerHeight + 1;
}"""


def test_on_a_phone_with_the_keyboard_alone_and_back(browser, address):
    with watched(browser, address, viewport={"width": 390, "height": 844}) as page:
        opened(page, address)
        page.wait_for_selector("#answer:not([hidden])")
        first = page.locator("#truth").text_content()
        before = drawn(page, "#views canvas")
        page.keyboard.press("Tab")  # the tabs
        page.keyboard.press("Tab")  # the pictures
        page.keyboard.press("ArrowDown")
        until(page, "location.hash.includes('sample-2')")
        settled(page, "#views canvas", before)
        for _ in range(5):  # the upload, the question, its button, the questions about the picture
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Ist die Scheibe über der Linie?"
        page.keyboard.press("Enter")
        answered(page, "Ist die Scheibe")
        assert page.evaluate(NOT_COVERED)
        assert page.locator("#answer-text").evaluate("e => e.getBoundingClientRect().bottom") < 844
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.go_back()
        page.go_back()
        until(page, "location.hash.includes('sample-1')")
        until(page, f"document.getElementById('truth').textContent === {first!r}")
        assert re.search("Farbe", page.locator("#question").input_value())
        page.locator("#info summary").focus()
        while page.evaluate("document.activeElement.name") != "sample":
            page.keyboard.press("Shift+Tab")
            assert page.evaluate(NOT_COVERED), page.evaluate("document.activeElement.outerHTML")
