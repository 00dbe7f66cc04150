"""Random answers, normalised and scored by the official code and by regard; run in a checkout of the official code.

The official code is Python 2. Where REGARD_PYTHON2 names such an interpreter it is run as it is; else its print
statements are converted in a temporary folder, and its patterns are given Python 2's meaning of a digit.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.vqa import mean_accuracy, normalise
from regard.vqa.contractions import CONTRACTIONS

OFFICIAL = Path("PythonEvaluationTools") / "vqaEvaluation" / "vqaEval.py"
PYTHON2 = os.environ.get("REGARD_PYTHON2")
QUESTIONS = 1000
PLAIN = ["yes", "No", "dog", "dark-blue", "red/white", "t-shirt", "u.s.a.", "what's"]
KINDS = {
    "punctuation": list(";/[]\"{}()=+\\_-><@`,?!.':&#%*"),
    "numbers": ["1,000", "3.5", "10.", ".5", "Two", "ten", "none", "zero", "1,2,3", "twenty-one"],
    "contractions": sorted(CONTRACTIONS) + sorted(CONTRACTIONS.values()),
    "articles": ["a", "an", "the", "The", "A", "an,", "a/the"],
    "scripts": [
        "\u0661,\u0662",
        "\uff11,\uff12",
        "3.\u0665",
        "\u0663.5",
        "\u00c9T\u00c9",
        "\u4e24",
        "\u00bd",
        "\u2003",
    ],
    # Letters whose small form Python 3 writes otherwise than Python 2.
    "casing": ["\u0130stanbul", "\u03a3\u03a3", "\u039f\u0394\u039f\u03a3"],
}
RUN = """
import io, json, sys
from vqaEval import VQAEval

class Data(object):
    def __init__(self, qa): self.qa = qa
    def getQuesIds(self): return sorted(self.qa)

rows = json.load(io.open("rows.json", encoding="utf-8"))
told = dict((r["question_id"], r) for r in rows)
official = VQAEval(Data(told), Data(dict((r["question_id"], {"answer": r["said"]}) for r in rows)), n=9)
words = dict((a, official.processDigitArticle(official.processPunctuation(a))) for r in rows for a in r["all"])
official.evaluate()
json.dump([words, official.accuracy["overall"], official.evalQA], open("found.json", "w"))
"""


def questions(kind):
    """Questions with ten answers each and what a model said, full of one kind of difficulty."""
    rng = random.Random(kind)

    def answer():
        words = [rng.choice(KINDS[kind] if rng.random() < 0.6 else PLAIN) for _ in range(rng.randint(1, 4))]
        return "".join(word + rng.choice([" ", " ", "", ",", "-", ". ", "\t"]) for word in words)

    def varied(text):
        changes = (str, str.upper, lambda t: f"the {t}", lambda t: f"{t}.", lambda t: f" {t}\n", lambda t: answer())
        return rng.choice(changes)(text)

    for number in range(QUESTIONS):
        first = answer()
        given = [first] * 10 if rng.random() < 0.15 else [varied(first) for _ in range(10)]
        said = varied(first)
        yield {
            "question_id": number,
            "answers": [{"answer": text, "answer_id": i} for i, text in enumerate(given)],
            "answer_type": "other",
            "question_type": "what",
            "said": said,
            "all": [*given, said],
        }


def official(folder, rows, python2):
    """What the official code makes of them: words, the accuracy, and that of each question."""
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "run.py").write_text(RUN)
    code = OFFICIAL.read_text(encoding="utf-8")
    if not python2:
        code = re.sub(r'^(\t*)print (".*")$', r"\1print(\2)", code, flags=re.MULTILINE)
        code = re.sub(r're\.compile\(("[^"]*")\)', r"re.compile(\1, re.ASCII)", code)
    (folder / "vqaEval.py").write_text(code, encoding="utf-8")
    command = [PYTHON2 if python2 else sys.executable, "run.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("python2", [False, True], ids=["converted", "python2"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_words_and_accuracies(kind, python2, tmp_path):
    """Not one differs."""
    if python2 and not PYTHON2:
        pytest.skip("REGARD_PYTHON2 names no interpreter")
    if kind == "casing" and not python2:
        pytest.skip("Python 3 has another way to write small letters")
    rows = list(questions(kind))
    words, overall, each = official(tmp_path, rows, python2)
    assert {text: normalise(text) for text in words} == words
    found = mean_accuracy({row["question_id"]: row["said"] for row in rows}, rows)
    assert abs(found.overall - overall) < 1e-6
    assert all(abs(100 * found.each[int(name)] - value) < 1e-6 for name, value in each.items())
    assert 0 < overall < 100
