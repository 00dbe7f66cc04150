"""The report of a run: with a summary, with results alone, without either; from Python and from the command line."""

import re
import shutil

import pytest
from typer.testing import CliRunner

from regard._problem import Problem
from regard.cli import application
from regard.report import write_run_report
from regard.vqa.evaluate_run import evaluate_run
from regard.vqa.folder import AnsweringFolder
from regard.vqa.samples import read_samples
from regard.vqa.store import load_run
from regard.vqa.summary import keep_summary, summarise


@pytest.fixture
def run(german, tmp_path):
    """A copy of the run, to change."""
    return shutil.copytree(german.path, tmp_path / "run")


def told(path):
    return path.read_text(encoding="utf-8")


def test_a_run_with_samples_and_a_summary(german, run):
    summary = summarise(load_run(run), german.train, german.test, german.evaluation, data="Bilder & mehr")
    keep_summary(AnsweringFolder(run), summary, german.evaluation)
    written = write_run_report(run, questions=10)
    text = told(written.path)
    assert written.path == run / "report.html"
    assert (written.questions, written.pictures) == (10, 8)
    assert written.size == written.path.stat().st_size
    assert summary.sentence in text
    assert "Bilder &amp; mehr" in text
    assert text.count("<article") == 10
    assert {*re.findall(r'data-group="([^"]+)"', text)} <= {"welche farbe", "ist die"}
    assert "not known: the run" not in text
    names = re.findall(r"the picture <bdi lang=\"\">([^<]+)<", text)
    order = [sample.name for sample in read_samples(AnsweringFolder(run))]
    assert list(dict.fromkeys(names)) == order  # every picture once before one comes twice
    # The answers on the page are those of the evaluation, each marked as it was counted.
    by_place = {(r.picture, r.question): r.id for r in german.test.records}
    articles = re.findall(
        r'data-mark="(\w+)".*?<h3[^>]*>([^<]+)</h3>.*?answers <b><bdi[^>]*>([^<]*)<.*?the picture <bdi[^>]*>([^<]+)<',
        text,
        re.DOTALL,
    )
    assert len(articles) == 10
    for mark, question, answer, name in articles:
        number = by_place[(name, question)]
        assert german.evaluation.predictions[number] == answer
        assert (mark == "right") == (german.evaluation.accuracy.each[number] == 1)


def test_a_run_with_samples_alone_says_how_to_measure_it(run, tmp_path):
    written = write_run_report(run, tmp_path / "mine.html", attentions=["discrete-softmax", "mixture-2"], questions=2)
    text = told(written.path)
    assert "regard evaluate" in text
    assert text.count("<article") == 2
    assert text.count("<b>discrete-softmax: ") == text.count("<b>mixture-2: ") == 2


def test_an_evaluated_run_shows_its_accuracy(german, run):
    evaluate_run(run, german.table, ["discrete-softmax"], out=run / "evaluation")
    text = told(write_run_report(run, questions=0).path)
    assert re.search(r"test</bdi>, continuous-softmax: \d+\.\d % right", text)
    assert "<article" not in text
    assert "regard evaluate" not in text


def test_a_run_with_neither_says_what_to_do(run):
    shutil.rmtree(run / "samples")
    with pytest.raises(Problem, match=r"neither samples nor results.*--validation.*regard evaluate") as said:
        write_run_report(run)
    assert "\n" not in str(said.value)
    assert not (run / "report.html").exists()


def test_a_summary_without_samples_is_a_report_too(german, run):
    summary = summarise(load_run(run), german.train, german.test, german.evaluation, data="x")
    keep_summary(AnsweringFolder(run), summary, german.evaluation)
    shutil.rmtree(run / "samples")
    written = write_run_report(run)
    assert written.questions == 0
    assert "carries no held-out pictures" in told(written.path)


def test_a_broken_sample_is_named_and_the_others_are_shown(run):
    first = read_samples(AnsweringFolder(run))[0]
    first.picture.write_bytes(b"no picture")
    text = told(write_run_report(run, questions=8).path)
    assert text.count("<article") == 7
    assert f"about {first.name}: " in text


def test_the_command(run, tmp_path):
    def command(*arguments):
        return CliRunner().invoke(application(), list(map(str, ("report", *arguments))))

    out = tmp_path / "r.html"
    done = command(run, "--out", out, "--questions", 3)
    assert done.exit_code == 0
    assert re.fullmatch(r".*r\.html: 3 questions about 3 pictures, \d\.\d MB\n", done.stdout)
    for arguments, said in (
        ((run, "--out", tmp_path / "r.txt"), "ends in .html"),
        ((run, "--attention", "wrong"), "attention"),
        ((tmp_path / "nowhere",), "Name the folder of a run"),
    ):
        failed = command(*arguments)
        assert isinstance(failed.exception, Problem)
        assert said in str(failed.exception)
        assert "\n" not in str(failed.exception)
