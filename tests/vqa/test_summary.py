"""The summary of a run: accuracy with an interval over pictures, baselines, types, and what was left out."""

import json
from dataclasses import replace

import numpy
import pytest

from regard._problem import Problem
from regard.vqa import resampling
from regard.vqa.folder import AnsweringFolder
from regard.vqa.question_groups import choose_grouping, group_of, shown_groups
from regard.vqa.records import Record, Skipped
from regard.vqa.resampling import resampled_interval
from regard.vqa.results import Results
from regard.vqa.store import load_run
from regard.vqa.summary import GroupSummary, RunSummary, keep_summary, summarise


def test_the_interval_is_that_of_means_over_drawn_pictures():
    generator = numpy.random.default_rng(1)
    pictures = [f"{i}" for i in generator.integers(0, 40, 300)]
    scores = 100.0 * (generator.random(300) < 0.7)
    names = sorted(set(pictures))
    means = []
    for _ in range(1000):
        drawn = generator.choice(names, len(names))
        taken = numpy.concatenate([scores[numpy.array(pictures) == name] for name in drawn])
        means.append(taken.mean())
    expected = numpy.quantile(means, (0.025, 0.975))
    assert resampled_interval(scores, pictures) == pytest.approx(expected, abs=1.2)


def test_many_questions_about_few_pictures_do_not_narrow_the_interval(monkeypatch):
    scores = numpy.repeat([100.0, 0.0, 100.0, 100.0, 0.0, 100.0] * 5, 10)
    few = resampled_interval(scores, [str(i // 10) for i in range(300)])
    many = resampled_interval(scores, [str(i) for i in range(300)])
    assert few[1] - few[0] > 2.5 * (many[1] - many[0])
    monkeypatch.setattr(resampling, "_DRAWN_AT_ONCE", 100)  # in parts: the same draws
    assert resampled_interval(scores, [str(i // 10) for i in range(300)]) == few


def test_pictures_that_are_all_alike_do_not_make_it_certain():
    low, high = resampled_interval(numpy.full(12, 100.0), [str(i) for i in range(12)])
    assert 70 < low < 80
    assert high == pytest.approx(100)
    low, high = resampled_interval(numpy.zeros(3), ["a", "b", "c"], lowest=-100.0)
    assert low < -40
    assert high > 40


def question(text, question_type="", answer_type="other"):
    return Record(0, "a", text, ("x",), answer_type, question_type)


def test_questions_are_grouped_by_what_the_data_has():
    by_type = [question("Was?", "colour"), question("Wo?", "place"), question("Wer?")]
    assert choose_grouping(by_type) == "question type"
    assert [group_of(r, "question type") for r in by_type] == ["colour", "place", "others"]
    assert choose_grouping([question("Was?", "", "number"), question("Wo?")]) == "answer type"
    assert choose_grouping([question("Was ist das?"), question("Wo ist das?")]) == "first words"
    assert group_of(question("¿Qué   COLOR tiene?"), "first words") == "¿qué color"
    assert group_of(question("???"), "first words") == "others"


def test_the_commonest_groups_are_shown_and_the_others_last():
    names = [f"word {i}" for i in range(12) for _ in range(20 - i)]
    assert shown_groups(names, "first words") == [*(f"word {i}" for i in range(8)), "others"]
    assert shown_groups(names, "question type") == [f"word {i}" for i in range(12)]
    assert shown_groups([f"{i}" for i in range(9)], "first words") == [f"{i}" for i in range(9)]


def test_a_summary_says_what_was_measured(german):
    run = load_run(german.path)
    train = replace(german.train, skipped=Skipped())
    train.skipped.add("question without a picture", "question 7 of train")
    train.skipped.add("question without a picture", "question 7 of train")  # met again by another command
    summary = summarise(run, train, german.test, german.evaluation, data="Bilder", left_out=["a note"], seconds=3.0)
    assert (summary.questions, summary.pictures) == (24, 8)
    assert (summary.train_questions, summary.train_pictures) == (72, 24)
    assert summary.accuracy == pytest.approx(german.evaluation.accuracy.overall)
    assert summary.interval[0] < summary.accuracy < summary.interval[1]
    assert list(summary.baselines) == ["question alone", "most frequent answer"]
    assert summary.grouping == "first words"
    assert [(g.name, g.questions) for g in summary.groups] == [("welche farbe", 16), ("ist die", 8)]
    mean = sum(g.questions * g.accuracy for g in summary.groups) / 24
    assert mean == pytest.approx(summary.accuracy)
    for name, value in summary.baselines.items():
        assert sum(g.questions * g.baselines[name] for g in summary.groups) / 24 == pytest.approx(value)
    assert summary.left_out == ("a note", "1 x question without a picture (train)")
    assert summary.backbone == "a small residual network (8, 16 channels), pictures of 16 x 16 pixels"
    best = max(summary.baselines.values())
    assert summary.gain[0] <= summary.accuracy - best <= summary.gain[1]
    assert "from the question alone one gets" in summary.sentence


def test_a_summary_comes_back_from_the_folder_and_a_new_run_has_none(german, tmp_path):
    folder = AnsweringFolder(tmp_path)
    assert folder.read_summary() is None
    summary = summarise(load_run(german.path), german.train, german.test, german.evaluation, data="Bilder <b>")
    Results({"test": {"mixture-2": {"overall": 1.0, "by_answer_type": {}, "quality": {}}}}).write(
        tmp_path / "evaluation"
    )
    keep_summary(folder, summary, german.evaluation)
    assert folder.read_summary() == summary
    results = Results.beside(tmp_path)
    assert results.splits["test"]["mixture-2"]["overall"] == 1.0
    assert results.metrics("continuous-softmax")["test"]["accuracy"] == pytest.approx(summary.accuracy)
    answers = json.loads((tmp_path / "evaluation" / "test_results.json").read_text())
    assert {a["question_id"]: a["answer"] for a in answers} == german.evaluation.predictions
    folder.begin_afresh()
    assert folder.read_summary() is None


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"groups": 1}', "null"])
def test_a_broken_summary_is_one_line_with_a_remedy(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(Problem, match=r"summary\.json cannot be read .* evaluate the run again") as said:
        AnsweringFolder(tmp_path).read_summary()
    assert "\n" not in str(said.value)


def test_a_split_without_answers_is_refused(german):
    bare = type(german.test)("bare", [Record(1, "a", "Was?")], {})
    with pytest.raises(Problem, match="no question of bare"):
        summarise(load_run(german.path), german.train, bare, german.evaluation, data="x")


def test_a_narrow_interval_is_said_with_a_decimal():
    summary = RunSummary("d", "test", 9000, 900, 1, 1, 82.44, (82.1, 82.8), {"most frequent answer": 31.26})
    assert "82.4 right (82.1 to 82.8); with the most frequent answer 31.3." in summary.sentence
    assert GroupSummary("a", 1, 50.0, {}).best_baseline is None
