"""The report says all that was found, in three forms, and loads nothing."""

import base64
import io
import json
import re
from dataclasses import replace

import pytest
import torch
from fake_model import FakePredictor
from PIL import Image

from regard._problem import Problem
from regard.report import Entry, write_report
from regard.report._pictures import _best_answers

NASTY = 'Is <script>alert("1")</script> & $x$ here?'


def entry(question="is it bright?", attentions=FakePredictor.attentions):
    picture = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    model = FakePredictor()
    return Entry(picture, question, [model.ask(picture, question, a) for a in attentions])


def test_titles_of_panels_do_not_run_into_each_other():
    asked = entry().predictions[0]
    long = replace(asked, top=[("bottom right", 0.9), ("bottom left", 0.05), ("top right", 0.01)])
    assert _best_answers(long) == "bottom right 90%"
    assert _best_answers(replace(asked, top=[("yes", 0.9), ("no", 0.1), ("2", 0.0)])) == "yes 90%, no 10%, 2 0%"


def test_html_holds_everything_and_loads_nothing(tmp_path):
    asked = entry(NASTY)
    text = write_report(tmp_path / "deep" / "report.html", [asked], title="A <b> title").read_text()
    assert "<script" not in text
    assert "Is &lt;script&gt;" in text
    assert "<title>A &lt;b&gt; title</title>" in text
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^">)]{0,30})', text)
    assert links
    assert all(link.startswith("data:image/png;base64,") for link in links)
    for p in asked.predictions:
        row = f'<td>{p.attention}</td><td>{p.answer}</td><td class="n">{p.confidence:.1%}</td>'
        assert row in text
        assert f"{p.entropy:.3f}" in text
        assert all(f"{score:.1%}" in text for _, score in p.top)
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(pictures) == 2
    assert all(Image.open(io.BytesIO(base64.b64decode(p))).format == "PNG" for p in pictures)


def test_json_is_what_the_predictions_say(tmp_path):
    asked = [entry(), entry("and this?", ("discrete",))]
    written = json.loads(write_report(tmp_path / "report.json", asked).read_text())
    assert [e["question"] for e in written["entries"]] == ["is it bright?", "and this?"]
    assert written["entries"][1]["predictions"] == json.loads(json.dumps([asked[1].predictions[0].to_json()]))


def test_png_is_one_sheet_that_grows_with_its_entries(tmp_path):
    one = Image.open(io.BytesIO(write_report(tmp_path / "one.png", [entry(NASTY)]).read_bytes()))
    two = Image.open(io.BytesIO(write_report(tmp_path / "two.png", [entry(), entry("x" * 300)]).read_bytes()))
    assert two.height > 1.8 * one.height
    assert len(one.getcolors(1 << 24)) > 200


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
