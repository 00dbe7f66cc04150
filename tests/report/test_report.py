"""The report says all that was found, in three forms, and loads nothing."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace

import numpy
import pytest
import torch
from fake_model import FakePredictor
from PIL import Image

from regard._problem import Problem
from regard.report import Entry, write_drawing, write_report
from regard.report import _examples as examples
from regard.report._overlay import attention_values, jpeg, overlay
from regard.report._page import page
from regard.report._style import script
from regard.vqa.summary import GroupSummary, RunSummary

NASTY = 'Is <script>alert("1")</script> & $x$ here?'


def entry(question="is it bright?", attentions=FakePredictor.attentions, **more):
    picture = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    model = FakePredictor()
    return Entry(picture, question, [model.ask(picture, question, a) for a in attentions], **more)


def answered(answer, *answers, **more):
    asked = entry(attentions=("discrete",))
    return replace(asked, predictions=[replace(asked.predictions[0], answer=answer)], answers=answers, **more)


def summary(**changes):
    groups = (
        GroupSummary("wo ist", 60, 90.0, {"question alone": 30.0, "most frequent answer": 40.0}),
        GroupSummary("<b>was</b>", 40, 70.0, {"question alone": 60.0, "most frequent answer": 10.0}),
    )
    baselines = {"question alone": 42.0, "most frequent answer": 28.0}
    return replace(
        RunSummary(
            "Bilder <i>", "test", 100, 20, 400, 80, 82.0, (79.0, 85.0), baselines, (35.0, 45.0), "first words", groups
        ),
        **changes,
    )


def test_html_holds_everything_and_loads_nothing(tmp_path):
    asked = entry(NASTY)
    text = write_report(tmp_path / "deep" / "report.html", [asked], title="A <b> title").read_text(encoding="utf-8")
    assert text.count("<script") == 1
    assert f"<script>{script()}</script>" in text
    assert "Is &lt;script&gt;" in text
    assert "<title>A &lt;b&gt; title</title>" in text
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^">)]{0,30})', text)
    assert links
    assert all(link.startswith("data:image/jpeg;base64,") for link in links)
    for p in asked.predictions:
        assert f"<b>{p.attention}: " in text
        assert all(f"<span>{score:.2f}</span>" in text for _, score in p.top)
    assert text.count("half of the attention lies on") == len(asked.predictions)
    for word in ("entropy", "confidence", "probability", " bits"):
        assert word not in text
    pictures = re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    continuous = sum(p.density is not None for p in asked.predictions)
    assert len(pictures) == 1 + len(asked.predictions) + continuous
    assert all(Image.open(io.BytesIO(base64.b64decode(p))).format == "JPEG" for p in pictures)


def test_the_policy_of_the_page_allows_its_script_and_no_other():
    text = page([entry()], "t")
    digest = re.search(r"script-src 'sha256-([^']+)'", text)[1]
    inside = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    assert base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() == digest
    assert "default-src 'none'" in text
    assert "onclick" not in text


def test_examples_are_marked_in_words_and_can_be_chosen():
    text = page(
        [
            answered("cat", *["Cat"] * 10, group="what"),
            answered("cat", *["dog"] * 10, group="what"),
            answered("cat", *["cat"], *["dog"] * 8, "pug", group="why <i>"),
            answered("cat", group="why <i>"),
        ],
        "t",
    )
    marks = re.findall(r'<article data-mark="(\w*)" data-group="([^"]*)">', text)
    assert marks == [("right", "what"), ("wrong", "what"), ("part", "why &lt;i&gt;"), ("", "why &lt;i&gt;")]
    for words in examples.MARKS.values():
        assert f">{words}</span>" in text
    assert re.findall(r'<option value="([^"]*)">', text) == ["", "right", "part", "wrong", "", "what", "why &lt;i&gt;"]
    assert '<form class="filter" hidden>' in text  # the script shows it: without scripts it would do nothing
    assert '<b><bdi lang="">dog</bdi></b> (8 of 10)' in text
    alone = page([answered("cat", *["cat"] * 10, group="what")], "t")
    assert "<form" not in alone  # nothing to choose


def test_texts_of_any_language_and_length_are_safe():
    hostile = '"><img src=x onerror=alert(1)>'
    asked = answered(hostile, *["כחול כהה"] * 10, group=hostile, name=hostile, unknown=[hostile])
    text = page([replace(asked, question="ما لون القطة؟ " + "sehr" * 3000)], hostile)
    assert "<img src=x" not in text
    assert 'lang="">כחול כהה</bdi>' in text
    assert '<h3 dir="auto" lang="">ما لون القطة؟' in text
    assert "sehr" * 200 not in text
    assert "…" in text


def test_the_summary_comes_first_and_in_words():
    text = page(
        [entry()], "Bilder", summary(left_out=("3 x <u>",), untrained=True, seconds=600.0, attention="mixture-2")
    )
    for said in (
        "Of 100 questions about new pictures it answers 82 right (79 to 85); from the question alone one gets 42",
        "Looking at the picture is worth 35 to 45 points over the question alone.",
        "100 questions about 20 pictures that it was not trained on (split test of Bilder &lt;i&gt;)",
        "400 questions about 80 pictures, in 10 minutes",
        "3 x &lt;u&gt;",
        "random weights",
        "By first words",
        "&lt;b&gt;was&lt;/b&gt;",
    ):
        assert said in text
    assert text.index("Of 100 questions") < text.index("By first words") < text.index("<article")
    bars = re.findall(r'<rect class="bar" width="([\d.]+)"', text.split("</ul>")[0])
    assert bars == ["82.00", "90.00", "70.00"]
    marks = re.findall(r'<rect class="mark" x="([\d.]+)"', text)
    assert marks == ["41.60", "39.60", "59.60"]  # the best baseline of each
    assert "without: 40 %" in text


def test_a_model_that_does_not_beat_the_question_is_said_not_to():
    assert "not clearly better than the question alone (between 2 points less and 5 points more)" in page(
        [], "t", summary(gain=(-2.0, 5.0))
    )
    assert "worse than the question alone" in page([], "t", summary(gain=(-9.0, -5.0)))
    assert "points" not in page([], "t", summary(gain=None, baselines={}, groups=())).split("<h2>")[0]


def test_many_large_pictures_stay_within_the_budget():
    noise = numpy.random.default_rng(0).integers(0, 256, (440, 440, 3), dtype=numpy.uint8)
    for at_most in (60_000, 6_000, 900):
        content = jpeg(noise, at_most)
        assert len(content) <= at_most
        assert Image.open(io.BytesIO(content)).size[0] in (440, 220, 110, 55, 27, 13)
    picture = torch.from_numpy(noise).permute(2, 0, 1)
    asked = replace(entry(attentions=("discrete", "TVmax")), picture=picture)
    before = examples.PICTURE_BUDGET
    try:
        examples.PICTURE_BUDGET = 200_000
        assert len(page([asked] * 10, "t")) < 400_000
    finally:
        examples.PICTURE_BUDGET = before


def test_colour_grows_with_attention_and_the_line_goes_around_half_of_it():
    grey = numpy.full((40, 60, 3), 120, dtype=numpy.uint8)
    values = numpy.zeros((40, 60))
    values[10:20, 10:30] = 8.0
    values[30:35, 40:50] = 2.0
    drawn = overlay(grey, values).astype(int)
    assert (drawn[0, 0] == drawn[39, 59]).all()  # no attention: the dimmed picture
    spread = drawn.max(-1) - drawn.min(-1)
    assert spread[0, 0] == 0
    assert 5 < spread[32, 45] < spread[15, 20]
    white = (drawn == 255).all(-1)
    assert white[10, 10:30].all()
    assert not white[30:35, 40:50].any()
    plain = overlay(grey, values, line=False)
    assert not (plain == 255).all(-1).any()
    values[30:35, 40:50] = -4.0
    assert (overlay(grey, values, line=False)[30:35, 40:50] == 255).all(-1).any()  # hatched


def test_values_are_multiples_of_an_even_spread():
    discrete, density = entry(attentions=("discrete", "continuous sparsemax")).predictions
    assert attention_values(discrete, 80, 120).mean() == pytest.approx(1, abs=1e-5)
    inside = density.density.pdf(torch.tensor([[0.5, 0.5]]))
    assert attention_values(density, 81, 121)[40, 60] == pytest.approx(float(inside), rel=1e-4)


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (700, 2), (3000, 40)])
def test_pictures_of_any_shape_are_drawn(size, tmp_path):
    picture = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    asked = Entry(picture, "?", [FakePredictor().ask(picture, "?", a) for a in ("discrete", "2 components")])
    write_report(tmp_path / "a.html", [asked])
    assert Image.open(io.BytesIO(write_drawing(tmp_path / "a.png", asked).read_bytes())).width > 300


def test_json_is_what_the_predictions_say(tmp_path):
    asked = [entry(), entry("and this?", ("discrete",), answers=["yes"], group="is it", name="a.jpg")]
    written = json.loads(write_report(tmp_path / "report.json", asked).read_text())
    assert [e["question"] for e in written["entries"]] == ["is it bright?", "and this?"]
    assert written["entries"][1]["predictions"] == json.loads(json.dumps([asked[1].predictions[0].to_json()]))
    assert written["entries"][1] | {"answers": ["yes"], "type": "is it", "picture": "a.jpg"} == written["entries"][1]
    assert "answers" not in written["entries"][0]


def test_png_is_one_sheet_that_grows_with_its_entries(tmp_path):
    one = Image.open(io.BytesIO(write_report(tmp_path / "one.png", [entry(NASTY)]).read_bytes()))
    two = Image.open(io.BytesIO(write_report(tmp_path / "two.png", [entry(), entry("x" * 300)]).read_bytes()))
    assert two.height > 1.8 * one.height
    assert len(one.getcolors(1 << 24)) > 200


@pytest.mark.parametrize("suffix", [".png", ".JPG", ".webp", ".pdf", ".svg"])
def test_a_drawing_has_the_format_of_its_name(tmp_path, suffix):
    path = write_drawing(tmp_path / f"deep/a{suffix}", entry("猫の色は $5", ("TVmax",), answers=["blau"]))
    begins = {".png": b"\x89PNG", ".JPG": b"\xff\xd8", ".webp": b"RIFF", ".pdf": b"%PDF", ".svg": b"<?xml"}
    assert path.read_bytes().startswith(begins[suffix])


@pytest.mark.parametrize(("name", "count"), [("report.pdf", 1), ("report", 1), ("report.html", 0)])
def test_what_cannot_be_written_is_said_in_one_line(tmp_path, name, count):
    with pytest.raises(Problem) as said:
        write_report(tmp_path / name, [entry()] * count)
    assert "\n" not in str(said.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attentions", [(), ("TVmax", "TVmax")])
def test_an_entry_has_each_attention_once(attentions):
    with pytest.raises(ValueError, match="predictions"):
        entry(attentions=attentions)
