"""The official accuracy: cases worked out by hand from the official rules, of every kind."""

from dataclasses import replace

import pytest

from regard.vqa import mean_accuracy, normalise, soft_target, vqa_accuracy
from regard.vqa.contractions import CONTRACTIONS
from regard.vqa.evaluate import accuracy_of
from regard.vqa.folder import AnsweringFolder
from regard.vqa.records import Answers, Record
from regard.vqa.words import Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes", "yes"),
        ("the an a A", ""),
        ("two dogs and ten cats, none", "2 dogs and 10 cats 0"),
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("somebody'd", "somebodyd"),
        ("let's", "let's"),
        ("yall'd've", "y'all'd've"),
        ("dark-blue", "dark blue"),
        ("dark -blue", "dark blue"),
        ("dark- blue-ish", "dark blueish"),
        ("1,000", "1000"),
        ("1,000 a/b", "1000 ab"),
        ("a/b", "b"),
        ("yes, no", "yes no"),
        ("yes,no", "yes no"),
        ("3.5", "3.5"),
        ("3. 5", "3 5"),
        ("u.s.a.", "usa"),
        ("no. 5.", "no 5"),
        ("." * 33 + "x", ".x"),
        ("it's: ok'", "it's: ok'"),
        ("{[(<>)]}", ""),
        ("what`s @home?", "what s home"),
        ("  wide \t  gap ", "wide gap"),
        ("", ""),
        ("twenty-one", "twenty 1"),
        ("Cant", "can't"),
        # Digits are 0 to 9 alone: what Python 2.7 makes of these with the official code.
        ("\u0661,\u0662", "\u0661 \u0662"),
        ("\u0661,\u0662-x", "\u0661 \u0662 x"),
        ("3.\u0665", "3\u0665"),
        ("\uff13.\uff15 m.", "\uff13\uff15 m"),
        ("\u0663.5", "\u0663.5"),
        ("\u00c9T\u00c9", "\u00e9t\u00e9"),
        ("caf\u00e9\u2003noir", "caf\u00e9 noir"),
        ("\u0130\u03a3\u03a3", "i\u03c3\u03c3"),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("Yes", ["yes"] * 10, 0),
        ("yes\n", ["yes", " yes", "yes\t"] + ["yes"] * 7, 1),
        ("two", ["2"] * 9 + ["3"], 1),
        ("Dog", ["the dog", "a dog", "an dog", "-dog"] + ["cat"] * 6, 1),
        ("0", ["none", "zero", "0", "None"] + ["1"] * 6, 1),
        ("yes", ["yes", "yes", "no"], 4 / 9),
        ("a", ["a"] + ["b"] * 9, 0.3),
        ("red", ["red"] + ["blue"] * 9, 0.3),
        ("red", ["red", "red"] + ["blue"] * 8, 0.6),
        ("red", ["red"] * 3 + ["blue"] * 7, 0.9),
        ("red", ["red"] * 4 + ["blue"] * 6, 1),
        ("", [""] * 10, 1),
        ("", ["the"] * 5 + ["yes"] * 5, 1),
        ("the", [""] * 10, 0),
        ("no", ["no"], 0),
    ],
)
def test_accuracy(prediction, answers, expected):
    assert vqa_accuracy(prediction, answers) == pytest.approx(expected, abs=1e-12)


def test_the_2017_code_differs_where_answers_are_noisy():
    answers = ["The dog"] * 5 + ["a dog"] * 5
    assert vqa_accuracy("dog", answers) == 1
    assert vqa_accuracy("dog", answers, version="2017") == 0
    assert vqa_accuracy("Yes", ["yes"] * 10, version="2017") == 1
    # The answers are not stripped, and their punctuation is looked at only where they differ.
    assert vqa_accuracy("dark-blue", ["dark-blue"] * 10, version="2017") == 0


def test_every_contraction_gets_its_apostrophe_and_stays():
    for spelling, written in CONTRACTIONS.items():
        assert normalise(spelling) == written
        assert spelling.replace("'", "") == written.replace("'", "")
    assert len(CONTRACTIONS) == 114


def test_aggregate_by_type():
    def annotation(i, answers, answer_type, question_type):
        records = [{"answer": a, "answer_id": n} for n, a in enumerate(answers)]
        return {"question_id": i, "answers": records, "answer_type": answer_type, "question_type": question_type}

    annotations = [
        annotation(1, ["yes"] * 10, "yes/no", "is there"),
        annotation(2, ["no"] * 10, "yes/no", "is the"),
        annotation(3, ["2"] + ["3"] * 9, "number", "how many"),
    ]
    result = mean_accuracy({1: "yes", 2: "yes", 3: "2"}, annotations)
    assert result.overall == pytest.approx(100 * 1.3 / 3)
    assert result.by_answer_type == pytest.approx({"yes/no": 50, "number": 30})
    assert result.by_question_type == pytest.approx({"is there": 100, "is the": 0, "how many": 30})
    assert result.each == pytest.approx({1: 1, 2: 0, 3: 0.3})
    assert "overall 43.33" in str(result)
    with pytest.raises(ValueError, match="none for question 3"):
        mean_accuracy({1: "yes", 2: "yes"}, annotations)
    with pytest.raises(ValueError, match="question 9, without annotation"):
        mean_accuracy({1: "yes", 2: "yes", 3: "2", 9: "x"}, annotations)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="answers: got"):
        vqa_accuracy("yes", [])
    with pytest.raises(ValueError, match="answers: got 'yes'"):
        vqa_accuracy("yes", "yes")
    with pytest.raises(ValueError, match="version"):
        vqa_accuracy("yes", ["yes"], version="2019")


def test_soft_targets():
    assert [soft_target(n) for n in (0, 1, 2, 3, 4, 10)] == pytest.approx([0, 0.3, 0.6, 0.9, 1, 1])


def test_answers_of_ones_own_are_spelled_as_people_wrote_them():
    rows = ["About a third", "about a third", "About a third", "A", "B", "b", "b"]
    records = [Record(i, "p", "?", (text,) * 10, lenient=True) for i, text in enumerate(rows)]
    answers = Answers.of(records, above=0)
    assert dict(zip(answers.known, answers.spelled, strict=True)) == {
        "about third": "About a third",
        "b": "b",
        "a": "A",
    }
    assert accuracy_of(records, dict.fromkeys(range(7), "about a third")).overall == pytest.approx(300 / 7)
    assert accuracy_of(records, dict.fromkeys(range(7), "B.")).overall == pytest.approx(300 / 7)
    assert accuracy_of(records, dict.fromkeys(range(7), "a")).overall == pytest.approx(100 / 7)


def test_the_official_accuracy_of_others_data_stays_official():
    agreed = Record(1, "p", "?", ("Two",) * 10)
    assert accuracy_of([agreed], {1: "2"}).overall == 0
    assert accuracy_of([replace(agreed, lenient=True)], {1: "2"}).overall == 100
    assert accuracy_of([Record(1, "p", "?", ("Two",) * 9 + ("3",))], {1: "2"}).overall == 100


def test_spellings_are_stored_with_the_vocabulary(tmp_path):
    folder = AnsweringFolder(tmp_path)
    answers = Answers.of([Record(1, "p", "?", ("About a third",))], above=0)
    folder.put_vocabulary(Words.of(["what"]), answers)
    assert folder.read_vocabulary()[1].spelled == ("About a third",)
    (tmp_path / "vocabulary.json").write_text('{"words": ["what"], "answers": ["cat"]}')  # as earlier runs have it
    assert folder.read_vocabulary()[1].spelled == ("cat",)
