"""The pictures that the page opens on, for a model of any language."""

import json
import shutil

import pytest
import torch
from fastapi.testclient import TestClient

from regard.explore._samples import drawn_scenes, peoples_answers, sample_pictures
from regard.explore._serve import explore_app
from regard.vqa.folder import AnsweringFolder
from regard.vqa.predict import NoKnownWord, Predictor
from regard.vqa.records import Answers
from regard.vqa.words import Words

SCENE_WORDS = Words.of(q.text for scene in drawn_scenes() for q in scene.questions)


def names(words, run=None):
    return list(sample_pictures(run, words))


def test_scenes_for_a_model_that_knows_all_their_words_else_the_photograph_else_nothing():
    assert names(SCENE_WORDS) == [f"scene-{i}" for i in range(1, 7)]
    assert names(Words(SCENE_WORDS.known[:-1])) != names(SCENE_WORDS)
    photograph = sample_pictures(None, Words.of(["What color is the cat?", "Is it big?"]))
    assert list(photograph) == ["cat"]
    assert [q.text for q in photograph["cat"].questions] == ["What color is the cat?"]
    assert names(Words.of(["Welche Farbe hat die Katze?"])) == []


def test_answers_of_people_have_the_credit_of_training():
    answers = peoples_answers(["Ein Bär"] * 6 + ["hund", "Hund", "maus", "Maus."], Answers(("hund",)))
    assert [(a.answer, a.count, a.total) for a in answers] == [("ein bär", 6, 10), ("hund", 2, 10), ("maus", 2, 10)]
    assert [a.credit for a in answers] == [1.0, 0.6, 0.6]
    assert [a.possible for a in answers] == [False, True, False]
    assert peoples_answers([]) == ()
    assert peoples_answers(["two"])[0] == peoples_answers(["2"])[0]


@pytest.fixture(scope="module")
def client(german_run):
    return TestClient(explore_app(german_run, "127.0.0.1"), base_url="http://127.0.0.1")


class TestGerman:
    def ask(self, client, question, sample="sample-1"):
        return client.post("/api/ask", data={"question": question, "sample": sample}, files={"none": (None, "")})

    def test_opens_on_the_runs_own_samples(self, client):
        told = client.get("/api/state").json()
        assert told["model"]["name"] == "run"
        assert {"farbe", "größte", "scheibe", "linie"} >= set(told["model"]["words"])
        assert [s["name"] for s in told["samples"]] == [f"sample-{i}" for i in range(1, 9)]
        assert all(s["label"].startswith("val-Äpfel ") for s in told["samples"])
        for sample in told["samples"]:
            first, second = sample["questions"]
            assert first["text"] == "Welche Farbe hat die größte Scheibe?"
            assert first["answers"][0]["answer"] in ("rot", "grün", "weiß")
            assert second["answers"][0]["count"] == 10
            assert client.get(f"/api/samples/{sample['name']}").headers["content-type"] == "image/jpeg"
            assert len(client.get(f"/api/thumbnails/{sample['name']}").content) < 6000
            answer = self.ask(client, first["text"], sample["name"]).json()["answer"]
            assert answer in ("rot", "grün", "weiß", "ja", "nein")
        assert client.get("/api/thumbnails/none").status_code == 404

    def test_says_which_words_are_content_and_which_are_unknown(self, client):
        words = self.ask(client, "Welche Farbe hat das Nilpferd?").json()["words"]
        roles = ["function", "content", "function", "unknown", "unknown"]
        assert [(w["word"], w["role"]) for w in words] == list(
            zip(["welche", "farbe", "hat", "das", "nilpferd"], roles, strict=True)
        )
        assert not any(w["role"] == "content" for w in self.ask(client, "Ist die Maus?").json()["words"])

    def test_letters_composed_or_not_are_the_same_word(self, client):
        apart = self.ask(client, "Ist die gro\u0308ßte Scheibe u\u0308ber der Linie?").json()
        together = self.ask(client, "Ist die größte Scheibe über der Linie?").json()
        assert apart["words"] == together["words"]
        assert all(w["role"] != "unknown" for w in together["words"])

    def test_a_question_without_a_known_word_is_refused_with_words_that_are_known(self, client):
        got = self.ask(client, "What colour?")
        assert got.status_code == 422
        assert got.json()["error"].startswith("this model knows no word of the question.")
        assert got.json()["unknown"] == ["what", "colour"]
        assert got.json()["known"]
        assert set(got.json()["known"]) <= {"farbe", "größte", "scheibe", "linie"}

    def test_words_that_are_not_read_are_told(self, client, german_run):
        length = Predictor.load(german_run).model.settings.tokens
        got = self.ask(client, "Farbe " * (length + 3)).json()
        assert (len(got["words"]), got["unread"]) == (length, ["farbe"] * 3)
        # All that is read is unknown: what follows does not make it a question.
        assert self.ask(client, "x " * length + "Farbe").status_code == 422

    def test_half_of_the_attention(self, german_run):
        predictor = Predictor.load(german_run)
        picture = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
        discrete, smooth = (predictor.ask(picture, "Farbe?", a) for a in ("discrete-sparsemax", "continuous-softmax"))
        weights = sorted(discrete.weights.flatten().tolist(), reverse=True)
        whole, total = 0, 0.0
        while total + weights[whole] < 0.5:
            total, whole = total + weights[whole], whole + 1
        area = (whole + (0.5 - total) / weights[whole]) / len(weights)
        assert discrete.half_area == pytest.approx(area, abs=1e-6)
        mass = smooth.map(300, 300).flatten().sort(descending=True).values.cumsum(0)
        assert smooth.half_area == pytest.approx(float((mass < mass[-1] / 2).double().mean()), abs=0.003)


def test_a_broken_picture_of_a_run_is_passed_over(german_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(german_run, run)
    AnsweringFolder(run).samples.joinpath("0.jpg").write_bytes(b"not a picture")
    AnsweringFolder(run).samples.joinpath("1.jpg").unlink()
    assert len(sample_pictures(run)) == 6
    # Without any the model has neither scenes nor the photograph, and the page opens all the same.
    shutil.rmtree(AnsweringFolder(run).samples)
    client = TestClient(explore_app(run, "127.0.0.1"), base_url="http://127.0.0.1")
    told = client.get("/api/state").json()
    assert told["samples"] == []
    assert told["model"]["words"]
    assert json.dumps(told)


def test_a_model_without_words_says_so():
    assert "no words at all" in str(NoKnownWord(["a"], []))
