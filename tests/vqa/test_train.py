"""Training end to end at a tiny size: it learns, resumes bit for bit after kill -9, stops early, and can be asked."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from regard._problem import Problem
from regard.backbones import Backbone, make_backbone, save_backbone
from regard.cli import application
from regard.scenes import Scenes, write_scenes
from regard.training import Running, latest
from regard.vqa.evaluate import evaluate_model
from regard.vqa.evaluate_run import evaluate_run
from regard.vqa.examples import Examples, Grouped
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.kinds import Discrete
from regard.vqa.mcan import MCAN
from regard.vqa.pixels import PixelStore
from regard.vqa.predict import Predictor
from regard.vqa.read import read_questions
from regard.vqa.records import Answers
from regard.vqa.results import Results
from regard.vqa.settings import ModelSettings, preset_training, relations, small, small_training
from regard.vqa.store import load_run
from regard.vqa.train import Answering, train
from regard.vqa.words import Words

TINY = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8, "dropout": 0.1}


def settings(**changes):
    model = small(**(TINY | changes.pop("model", {})))
    return small_training(**({"model": model, "epochs": 2, "batch": 32, "above": 2} | changes))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Scenes, a backbone and features."""
    folder = tmp_path_factory.mktemp("vqa")
    for split, count in (("train", 40), ("val", 10)):
        write_scenes(Scenes(split, count, size=32), folder / "scenes")
    torch.manual_seed(0)
    save_backbone(make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2), folder / "backbone")
    from regard.backbones import load_backbone

    pictures = {}
    for split in ("train", "val"):
        pictures |= read_questions(folder / "scenes", split).pictures
    make_features(folder / "features", pictures, load_backbone(folder / "backbone"), name=str(folder / "backbone"))
    return folder


def run(place, out, split="train", **changes):
    records, store = read_questions(place / "scenes", split), FeatureStore.open(place / "features")
    validation = read_questions(place / "scenes", "val")
    return train(out, records, store, settings(**changes), validation=validation, running=Running(progress=False))


def test_trains_evaluates_and_answers(place, tmp_path):
    trained = run(place, tmp_path, epochs=4)
    assert 0 < trained.evaluation.accuracy.overall < 100
    assert set(trained.evaluation.accuracy.by_answer_type) == {"yes/no", "number", "other"}
    means = trained.evaluation.quality_means()
    assert {"all", "one region", "several", "where"} <= set(means)
    assert 0 < means["one region"]["mass"] < 1
    loss = [float(row.split(",")[1]) for row in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    assert loss[-1] < loss[0]

    predictor = Predictor.load(tmp_path)
    picture = Scenes("val", 1, size=32).picture(0)
    prediction = predictor.ask(picture, "What colour is the ring?")
    assert prediction.answer in predictor.answers.known
    assert prediction.confidence == prediction.top[0][1] >= prediction.top[1][1]
    assert prediction.weights.shape == prediction.effective.shape == predictor.model.cells
    assert sum(weight for _, weight in prediction.words) == pytest.approx(1, abs=1e-4)
    for kind in predictor.attentions:
        told = predictor.ask(picture, "What colour is the ring?", kind).to_json()
        assert json.loads(json.dumps(told))["attention"] == kind
        assert (told["density"] is None) == kind.startswith("discrete")
        assert 0 < told["support_area"] <= 1
    with pytest.raises(Problem, match="empty"):
        predictor.ask(picture, " ?")
    with pytest.raises(Problem, match="knows no word"):
        predictor.ask(picture, "这是什么")

    # What is asked is what was evaluated: the same answers from pictures as from stored features.
    validation = read_questions(place / "scenes", "val")
    asked = {
        r.id: predictor.ask(
            Scenes("val", 10, size=32).picture(int(r.picture[-4:])), r.question, "discrete-softmax"
        ).answer
        for r in validation.records[:10]
    }
    assert asked == {i: trained.evaluation.predictions[i] for i in asked}


def test_evaluated_with_another_attention(place, tmp_path):
    run(place, tmp_path, model={"attention": "continuous-softmax"})
    trained = load_run(tmp_path)
    examples = Examples(
        read_questions(place / "scenes", "val"),
        FeatureStore.open(place / "features", trained.features),
        trained.words,
        trained.answers,
        14,
    )
    own = evaluate_model(trained.model, examples, trained.answers)
    chosen = evaluate_model(trained.model, examples, trained.answers, "mixture-selected-0.05")
    assert (own.attention, chosen.attention) == ("continuous-softmax", "mixture-selected-0.05")
    assert trained.model.attention == "continuous-softmax"
    assert sum(chosen.components.values()) == pytest.approx(100)
    assert not own.components


def test_evaluated_on_every_split(place, tmp_path):
    run(place, tmp_path / "run")
    said = evaluate_run(tmp_path / "run", place / "scenes", ["continuous-softmax"], tmp_path / "numbers")
    assert "== val: " in said
    assert "== train" not in said
    assert "trained with discrete-softmax" in said
    assert "mixture-selected" in said
    results = json.loads((tmp_path / "numbers" / "val_results.json").read_text())
    assert len(results) == len(read_questions(place / "scenes", "val"))
    # Every score has something to be compared with: in the tables, in the numbers, and on the card.
    for row in ("question only", "majority", "even spread", "centred blob"):
        assert re.search(rf"^{row} +\d", said, re.MULTILINE)
    numbers = Results.read(tmp_path / "numbers")
    assert numbers.splits["val"]["even spread"]["overall"] is None
    assert numbers.splits["val"]["majority"]["quality"] == {}
    assert numbers.splits["val"]["even spread"]["quality"]["all"]["entropy"] == pytest.approx(0, abs=1e-5)
    assert numbers.metrics("discrete-softmax").keys() == {"val"}
    accuracies, qualities = numbers.sections("discrete-softmax")[0].text.split("Where it looked")
    assert "majority" in accuracies
    assert "majority" not in qualities
    assert "centred blob" in qualities
    assert "centred blob" not in accuracies
    lines = []
    evaluate_run(tmp_path / "run", place / "scenes", ["continuous-softmax"], progress=lines.append)
    assert [line.split(":")[0] for line in lines] == [
        "val, discrete-softmax",
        "val, continuous-softmax",
        "val, mixture-selected",
    ]
    assert "(0 %)" in lines[0]
    assert re.search(r"\(66 %, about .* left\)", lines[2])
    # Pictures that the stored features do not hold: features are made.
    picture = next(iter(read_questions(place / "scenes", "val").pictures.values()))
    shutil.copy(picture, tmp_path / "new.png")
    row = {"picture": "new.png", "question": "What colour is the ring?", "answer": "red"}
    (tmp_path / "own.jsonl").write_text(json.dumps(row))
    assert "== own: 1 questions" in evaluate_run(tmp_path / "run", tmp_path / "own.jsonl", [])
    with pytest.raises(Problem, match="none of the splits"):
        evaluate_run(tmp_path / "run", tmp_path)
    shutil.copytree(place / "scenes", tmp_path / "asked")
    next((tmp_path / "asked").rglob("*val*annotations.json")).unlink()
    said = evaluate_run(tmp_path / "run", tmp_path / "asked", attentions=[], out=tmp_path / "unknown")
    assert "questions without answers" in said
    assert [p.name for p in (tmp_path / "unknown").iterdir()] == ["val_results.json"]  # answers, and no numbers


def test_another_vocabulary_or_backbone_is_refused(place, tmp_path):
    run(place, tmp_path)
    path = tmp_path / "vocabulary.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"answers": said["answers"][::-1]}))
    with pytest.raises(Problem, match="belongs to another run"):
        load_run(tmp_path)
    path.write_text("{")
    with pytest.raises(Problem, match="cannot be read"):
        load_run(tmp_path)
    path.write_text(json.dumps(said))
    save_backbone(make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2), tmp_path / "backbone")
    with pytest.raises(Problem, match=r"does not make the features that the model was trained on: .*fingerprint"):
        Predictor.load(tmp_path)
    with pytest.raises(Problem, match="no checkpoint"):
        load_run(tmp_path / "none")


def test_a_run_from_before_there_were_descriptions(place, tmp_path):
    """Its config has the backbone's name and a fingerprint, with a mark for stages."""
    run(place, tmp_path, epochs=1)
    features = load_run(tmp_path).features
    path = latest(tmp_path).folder / "config.json"
    config = json.loads(path.read_text())
    config["backbone"] = {"name": features.name, "fingerprint": features.weights, "end_to_end": False}
    path.write_text(json.dumps(config))
    assert load_run(tmp_path).features == features
    assert not Predictor.load(tmp_path).stages
    config["backbone"]["fingerprint"] += "-stages"
    path.write_text(json.dumps(config))
    assert load_run(tmp_path).features.stages


def test_a_run_and_its_export_are_the_same_model(place, tmp_path):
    """By the conventions of the Hub, with what an evaluation found in the card."""
    out, picture = tmp_path / "run", Scenes("val", 1, size=32).picture(0)
    run(place, out, epochs=1)
    expected = Predictor.from_pretrained(out).ask(picture, "What colour is the ring?").top
    x, words = torch.randn(1, *load_run(out).model.cells, 16), torch.ones(1, 14, dtype=torch.int64)
    assert torch.equal(MCAN.from_pretrained(out)(x, words).scores, load_run(out).model(x, words).scores)
    assert Backbone.from_pretrained(out).dim == 16
    assert command("export", "model", out, "--out", tmp_path / "plain").endswith("not evaluated\n")
    assert "Where it looked" not in (tmp_path / "plain" / "README.md").read_text()

    command("evaluate", out, place / "scenes", "--out", out / "evaluation")
    said = command("export", "model", out, "--out", tmp_path / "model", "--license", "apache-2.0")
    assert said.endswith("evaluated on val\n")
    exported = Predictor.from_pretrained(tmp_path / "model")
    assert exported.ask(picture, "What colour is the ring?").top == expected
    assert command("ask", tmp_path / "model", picture_file(tmp_path, picture), "What colour is the ring?").startswith(
        expected[0][0]
    )
    assert "== val" in command("evaluate", tmp_path / "model", place / "scenes")

    numbers = json.loads((out / "evaluation" / "val.json").read_text())["discrete-softmax"]
    assert json.loads((tmp_path / "model" / "evaluation" / "val.json").read_text())["discrete-softmax"] == numbers
    card = ModelCard.load(tmp_path / "model" / "README.md")
    facts = card.data.to_dict()
    assert (facts["library_name"], facts["license"]) == ("regard", "apache-2.0")
    assert facts["pipeline_tag"] == "visual-question-answering"
    shown = {e.metric_type: e.metric_value for e in card.data.eval_results}
    assert shown["accuracy"] == pytest.approx(numbers["overall"], abs=1e-4)
    assert shown["attention mass"] == pytest.approx(numbers["quality"]["all"]["mass"], abs=1e-4)
    quality = [f"{numbers['quality']['all'][name]:.3f}" for name in ("mass", "pointing", "divergence", "rank")]
    assert f"| **discrete-softmax** (its own) | {' | '.join(quality)} |" in card.text
    assert f"| **discrete-softmax** (its own) | {numbers['overall']:.1f} |" in card.text
    assert "| continuous-sparsemax |" in card.text


def test_results_that_are_none(tmp_path):
    with pytest.raises(Problem, match="has no results"):
        Results.read(tmp_path)
    for wrong in ("{", "[]", '{"a": {"overall": 1}}', '{"a": {"overall": "1", "by_answer_type": {}, "quality": {}}}'):
        (tmp_path / "val.json").write_text(wrong)
        with pytest.raises(Problem, match=r"val\.json is no result of regard evaluate"):
            Results.read(tmp_path)


def command(*words):
    """What a command of regard prints."""
    done = CliRunner().invoke(application(), list(map(str, words)), prog_name="regard")
    assert done.exit_code == 0, done.exception
    return done.output


def picture_file(folder, picture):
    from PIL import Image

    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / "picture.png")
    return folder / "picture.png"


def test_end_to_end(place, tmp_path):
    records = read_questions(place / "scenes", "train")
    torch.manual_seed(0)
    backbone = make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2)
    before = {name: p.clone() for name, p in backbone.named_parameters()}
    store = PixelStore(records.pictures, backbone, "small")
    train(tmp_path, records, store, settings(epochs=1, batch=4, grouped=True), running=Running(progress=False))
    moved = load_run(tmp_path).load_backbone()
    assert all(not torch.equal(p, before[name]) for name, p in moved.named_parameters())
    assert "== val" in evaluate_run(tmp_path, place / "scenes", [])
    assert Predictor.load(tmp_path).ask(Scenes("val", 1, size=32).picture(0), "What colour is the ring?").answer
    with pytest.raises(Problem, match="without"):
        train(tmp_path, records, store, settings(), validation=records)


def test_questions_about_one_picture_together(place):
    records, store = read_questions(place / "scenes", "val"), FeatureStore.open(place / "features")
    words, answers = Words.of(r.question for r in records.records), Answers.of(records.records, above=0)
    examples = Examples(records, store, words, answers, 14)
    together = Grouped(examples)
    assert len(together) == 10
    torch.manual_seed(0)
    model = MCAN(small(**TINY), vocabulary=len(words), answers=len(answers), cells=store.shape[:2], features=16).eval()
    given = together.batch([3, 1])
    asked = [i for name in (together.names[3], together.names[1]) for i in together.groups[name]]
    apart = examples.batch(asked)
    assert len(given["features"]) == 2 < len(apart["features"])
    assert torch.equal(given["targets"], apart["targets"])
    scores = model(given["features"], given["words"], given["rows"]).scores
    assert torch.allclose(scores, model(apart["features"], apart["words"]).scores, atol=1e-5)


def test_stops_early(place, tmp_path):
    trained = run(place, tmp_path, epochs=9, lr=1e-12, patience=1, grouped=False)
    assert trained.stopped_early
    assert latest(tmp_path).step == 2 * (len(read_questions(place / "scenes", "train")) // 32)


def weights_and_log(out):
    checkpoint = latest(out)
    rows = [row.rpartition(",")[0] for row in (out / "log.csv").read_text().splitlines()]
    return checkpoint.step, {n: t.tolist() for n, t in checkpoint.weights().items()}, rows


@pytest.mark.parametrize("lr", [1e-12, 1e-3])
def test_patience_resumes_and_repeats(place, tmp_path, monkeypatch, lr):
    """Stopped in each epoch, before and after its validation, and repeated when it has ended."""
    options = {"epochs": 4, "lr": lr, "patience": 2, "grouped": False}
    whole = run(place, tmp_path / "whole", **options)
    moments = iter(range(99))

    class Killed(Exception):
        pass

    def killed(*arguments, **more):
        if next(moments) % 2:
            raise Killed
        return evaluate_model(*arguments, **more)

    monkeypatch.setattr("regard.vqa.train.evaluate_model", killed)
    parts, kills = None, 0
    while parts is None:
        try:
            parts = run(place, tmp_path / "parts", **options)
        except Killed:
            kills += 1
    assert kills > 1
    assert weights_and_log(tmp_path / "parts") == weights_and_log(tmp_path / "whole")
    assert (tmp_path / "parts" / "validation.json").read_bytes() == (tmp_path / "whole/validation.json").read_bytes()
    monkeypatch.undo()
    again = run(place, tmp_path / "whole", **options)
    assert (again.fitted.steps, again.stopped_early) == (0, whole.stopped_early)
    assert again.evaluation.accuracy == whole.evaluation.accuracy == parts.evaluation.accuracy
    assert whole.fitted.steps == latest(tmp_path / "whole").step


def test_other_questions_are_refused_and_fresh_starts_over(place, tmp_path):
    run(place, tmp_path, epochs=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    records, store = read_questions(place / "scenes", "train"), FeatureStore.open(place / "features")
    other = "no" if records.records[0].answers[0] == "yes" else "yes"
    records.records[0] = dataclasses.replace(records.records[0], answers=(other,) * 10)
    told = r"has a run trained on \d+ questions about 40 pictures in .* \(train\), digest \w+, and this is .*--fresh"
    with pytest.raises(Problem, match=told):
        train(tmp_path, records, store, settings(epochs=1), running=Running(progress=False))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    train(tmp_path, records, store, settings(epochs=1), running=Running(progress=False, resume=False))
    (tmp_path / "data.json").unlink()  # as in a run of earlier days
    again = train(tmp_path, records, store, settings(epochs=1), running=Running(progress=False))
    assert again.fitted.steps == 0


def test_pictures_that_changed_are_other_data(place, tmp_path):
    records = read_questions(place / "scenes", "train")
    shutil.copytree(place / "features", tmp_path / "features")
    store = FeatureStore.open(tmp_path / "features")
    train(tmp_path / "run", records, store, settings(epochs=1), running=Running(progress=False))
    name = records.records[0].picture
    from regard.backbones import load_backbone

    changed = {name: 255 - store[[name]].new_zeros(3, 32, 32).byte()}
    store, _ = make_features(tmp_path / "features", changed, load_backbone(place / "backbone"))
    with pytest.raises(Problem, match="and this is"):
        train(tmp_path / "run", records, store, settings(epochs=1), running=Running(progress=False))


def test_a_backbone_without_a_name_is_not_looked_for(place, tmp_path, monkeypatch):
    """Where there is no network, asking the Hub for it would take half a minute."""
    from regard.backbones import load_backbone

    questions = read_questions(place / "scenes", "train")
    store, _ = make_features(tmp_path / "features", questions.pictures, load_backbone(place / "backbone"))
    asked = []
    monkeypatch.setattr("regard.vqa.train.load_backbone", asked.append)
    train(tmp_path / "run", questions, store, settings(), running=Running(progress=False))
    assert asked == []
    assert not (tmp_path / "run" / "backbone").exists()


def test_says_what_it_skipped(place, tmp_path):
    records = read_questions(place / "scenes", "train")
    records.pictures.pop(records.records[0].picture)
    records.records[3] = dataclasses.replace(records.records[3], question="")
    records.records[5] = dataclasses.replace(records.records[5], picture="unknown")
    trained = train(
        tmp_path, records, FeatureStore.open(place / "features"), settings(epochs=1), running=Running(progress=False)
    )
    assert "question 3 of train has no words" in trained.skipped
    assert "question 5 of train: no features of unknown" in trained.skipped
    with pytest.raises(Problem, match="more than 1000000 times"):
        run(place, tmp_path / "b", above=1_000_000)


CHILD = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_train import run
run(Path({place!r}), Path({out!r}), epochs=3)
"""


def test_killed_and_resumed_bit_for_bit(place, tmp_path):
    code = CHILD.format(tests=os.path.dirname(__file__), place=str(place), out=str(tmp_path / "killed"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + 120
    while latest(tmp_path / "killed") is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    stopped = latest(tmp_path / "killed")
    assert stopped is not None
    for out in ("killed", "whole"):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        run(place, tmp_path / out, epochs=3)
        torch.set_num_threads(threads)
    killed, whole = (latest(tmp_path / out) for out in ("killed", "whole"))
    assert killed.step == whole.step > 0
    a, b = killed.weights(), whole.weights()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_sparse_attention_is_annealed_and_resumes(place, tmp_path, monkeypatch):
    """Alpha goes from 1 to 2 over the first half of the steps, also across a stop, and no other kind is touched."""
    used, forward = [], MCAN.forward

    def watched(self, *given, attention=None):
        if self.training:
            used.append(str(attention))
        return forward(self, *given, attention=attention)

    monkeypatch.setattr(MCAN, "forward", watched)
    options = {"anneal": 0.5, "epochs": 4, "model": {"attention": "discrete-sparsemax"}}
    run(place, tmp_path / "whole", **options)
    half = len(used) // 2
    assert used[0] == "discrete-softmax"
    assert used[half:] == ["discrete-sparsemax"] * (len(used) - half)
    alphas = [Discrete(name.removeprefix("discrete-")).alpha for name in used]
    assert alphas == sorted(alphas)
    assert alphas[:half] == pytest.approx([1 + step / half for step in range(half)], abs=0.006)
    stopped, used[:] = half // 2, []
    records, store = read_questions(place / "scenes", "train"), FeatureStore.open(place / "features")

    class Stopped(Exception):
        pass

    def stop(self, step):
        self.steps_done = step + 1
        if step + 1 == stopped + 1:
            raise Stopped

    often = Running(progress=False, checkpoint_every=stopped)
    with monkeypatch.context() as patch:
        patch.setattr(Answering, "after_update", stop)
        with pytest.raises(Stopped):
            train(tmp_path / "stopped", records, store, settings(**options), running=often)
    used.clear()
    train(tmp_path / "stopped", records, store, settings(**options), running=often)
    assert len(used) == len(alphas) - stopped
    assert [Discrete(name.removeprefix("discrete-")).alpha for name in used] == alphas[stopped:]
    a, b = (latest(tmp_path / name).weights() for name in ("whole", "stopped"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    used.clear()
    run(place, tmp_path / "smooth", anneal=0.5, epochs=1, model={"attention": "continuous-softmax"})
    assert set(used) == {"continuous-softmax"}


def test_anneal_is_a_share():
    with pytest.raises(ValueError, match="anneal: got 50"):
        settings(anneal=50)
    with pytest.raises(ValueError, match="anneal"):
        settings(anneal=0)


def test_presets():
    assert preset_training("thesis").model == ModelSettings()
    assert preset_training("small", attention="mixture-2") == small_training(model=small(attention="mixture-2"))
    assert preset_training("relations").model == relations()
    with pytest.raises(Problem, match=r"no preset 'large'.* thesis, full, small, relations"):
        preset_training("large")


def test_a_fresh_run_takes_the_place_of_another(place, tmp_path):
    records, store = read_questions(place / "scenes", "train"), FeatureStore.open(place / "features")
    quiet, other = Running(progress=False), settings(epochs=1, above=60)
    first = train(tmp_path, records, store, settings(epochs=1), running=quiet)
    with pytest.raises(Problem, match="vocabulary of another run"):
        train(tmp_path, records, store, other, running=quiet)
    again = train(tmp_path, records, store, other, running=dataclasses.replace(quiet, resume=False))
    assert again.fitted.resumed == 0
    assert again.fitted.steps == first.fitted.steps
    assert len(load_run(tmp_path).answers) < len(Answers.of(records.records, 2))


def test_accuracies_of_epochs_after_the_checkpoint_are_forgotten(tmp_path, monkeypatch):
    """A run that was killed between an epoch's accuracy and its checkpoint trains and measures that epoch again."""
    from types import SimpleNamespace

    from regard.vqa.folder import AnsweringFolder
    from regard.vqa.train import _EarlyStopping

    folder = AnsweringFolder(tmp_path)
    folder.write_validation({1: 50.0, 2: 60.0, 3: 55.0})
    monkeypatch.setattr(AnsweringFolder, "latest", lambda self: SimpleNamespace(step=25))
    stopping = _EarlyStopping(folder, 1, per_epoch=10)
    assert stopping.scores == {1: 50.0, 2: 60.0}
    assert (stopping.epoch, stopping.due) == (3, False)
