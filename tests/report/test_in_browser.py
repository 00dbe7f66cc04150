"""The report in a real browser: the filter, a phone, the dark, without scripts, and on paper."""

from dataclasses import replace

import pytest
import torch
from fake_model import FakePredictor

from regard.report import Entry
from regard.report._page import page as report_page
from regard.vqa.summary import GroupSummary, RunSummary


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report with right and wrong answers of two types, long words and text from right to left."""
    model, entries = FakePredictor(), []
    for i in range(6):
        picture = torch.full((3, 60, 90), 40 * i, dtype=torch.uint8)
        asked = [model.ask(picture, "Frage", kind) for kind in ("discrete", "continuous softmax")]
        entries.append(Entry(picture, "ما لون القطة؟", asked, ["yes"] * 10, "what" if i % 2 else "where", f"{i}.png"))
    long = "Donaudampfschifffahrtsgesellschaft" * 8
    entries[0] = replace(
        entries[0], predictions=[replace(p, answer=long, top=[(long, 0.5)]) for p in entries[0].predictions]
    )
    groups = (
        GroupSummary("what", 50, 80.0, {"question alone": 40.0}),
        GroupSummary(long, 50, 70.0, {"question alone": 99.9}),
    )
    numbers = (100, 20, 400, 80, 82.0, (79.0, 85.0), {"question alone": 47.0}, (30.0, 40.0), "question type", groups)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_page(entries, long, RunSummary(long, "test", *numbers)), encoding="utf-8")
    return path.as_uri()


def opened(browser, address, width=1400, **more):
    context = browser.new_context(viewport={"width": width, "height": 844}, **more)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else page.complaints.append(r.url))
    page.goto(address)
    return page


def shown(page):
    return page.locator("article:visible").count()


def test_the_filter_chooses_by_mark_and_type(browser, report):
    page = opened(browser, report)
    marks = page.eval_on_selector_all("article", "all => all.map(a => [a.dataset.mark, a.dataset.group])")
    right, there = sum(m == "right" for m, _ in marks), sum(m == "right" and g == "where" for m, g in marks)
    assert 0 < there < right < 6
    assert shown(page) == 6
    page.get_by_label("Answers").select_option("right")
    assert shown(page) == right
    page.get_by_label("Type").select_option("where")
    assert shown(page) == there
    assert page.locator("output").inner_text() == f"{there} of 6 shown"
    page.get_by_label("Answers").select_option("")
    page.get_by_label("Type").select_option("")
    assert shown(page) == 6
    assert page.complaints == []


def test_without_scripts_all_is_shown_and_nothing_is_dead(browser, report):
    page = opened(browser, report, java_script_enabled=False)
    assert shown(page) == 6
    assert page.locator("select:visible").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1400])
def test_nothing_scrolls_sideways_and_text_is_readable(browser, report, width, scheme):
    page = opened(browser, report, width, color_scheme=scheme)
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    brightness = "e => getComputedStyle(e)[k].match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 765"
    ink, paper = (
        page.eval_on_selector("body", brightness.replace("[k]", f".{k}")) for k in ("color", "backgroundColor")
    )
    assert abs(ink - paper) > 0.7
    assert (paper < 0.3) == (scheme == "dark")
    assert page.complaints == []


def test_on_paper_it_is_dark_on_white_and_examples_stay_whole(browser, report):
    page = opened(browser, report, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    assert page.eval_on_selector("article", "e => getComputedStyle(e).breakInside") == "avoid"
    assert page.locator("form:visible").count() == 0
    assert shown(page) == 6
