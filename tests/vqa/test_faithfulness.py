"""Hiding cells and following the answer: against a slow twin, and on models that look at what they are told to."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import faithfulness as reference
from typer.testing import CliRunner

from regard._problem import Problem
from regard.backbones import make_backbone, save_backbone
from regard.cli import application
from regard.pictures import read
from regard.report import write_run_report
from regard.scenes import Scenes, write_scenes
from regard.training import Running, generator
from regard.vqa.evaluate_run import evaluate_run
from regard.vqa.examples import Examples
from regard.vqa.faithfulness import (
    BASELINES,
    CURVES,
    RANKINGS,
    Faithfulness,
    MeanInterval,
    area_under,
    cell_order,
    kept_cells,
    measure_faithfulness,
)
from regard.vqa.faithfulness_table import faithfulness_table, verdict
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.grids import grids
from regard.vqa.hiding import HideFeatures, HidePixels, _substitute, choose_hiding
from regard.vqa.output import Looked
from regard.vqa.read import read_questions
from regard.vqa.results import Results
from regard.vqa.settings import small, small_training
from regard.vqa.store import load_run
from regard.vqa.tracing import trace
from regard.vqa.train import train

SIZES = {"words": 8, "width": 16, "heads": 2, "feed_forward": 32, "flat": 16, "fused": 24}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Scenes, features and a run."""
    folder = tmp_path_factory.mktemp("faithful")
    for split, count in (("train", 12), ("test", 6)):
        write_scenes(Scenes(split, count, size=32), folder / "scenes")
    torch.manual_seed(0)
    backbone = make_backbone("small", size=32, widths=[4, 8], depths=[1, 1], stem_stride=4)
    pictures = {}
    for split in ("train", "test"):
        pictures |= read_questions(folder / "scenes", split).pictures
    make_features(folder / "features", pictures, backbone, stages=True)
    chosen = replace(small_training(model=small(**SIZES), epochs=1), above=0)
    store = FeatureStore.open(folder / "features")
    train(folder / "run", read_questions(folder / "scenes", "train"), store, chosen, running=Running(progress=False))
    save_backbone(backbone, folder / "run" / "backbone")
    return folder


@pytest.fixture(scope="module")
def parts(place):
    run, store = load_run(place / "run"), FeatureStore.open(place / "features")
    with torch.no_grad():
        run.model.flat_picture.pool.score[3].weight *= 30  # so that the attention differs from cell to cell
    examples = Examples(read_questions(place / "scenes", "test"), store, run.words, run.answers, 14)
    return run, store, examples


@given(
    cells=st.integers(1, 12),
    steps=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    values=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_masks_are_those_of_the_slow_twin(cells, steps, seed, values):
    draw = torch.Generator().manual_seed(seed)
    importance = torch.randint(0, values, (2, cells), generator=draw).float()  # with ties
    ties = torch.randperm(cells, generator=draw).float()
    deletion, insertion = kept_cells(cell_order(importance, ties), steps)
    for row in range(2):
        for step in range(steps + 1):
            for fast, shown in ((deletion, False), (insertion, True)):
                slow = reference.kept_at(importance[row].tolist(), ties.tolist(), step / steps, shown)
                # A half is rounded up in whole numbers, the twin's share may lie a rounding below it.
                if abs((2 * step * cells) % (2 * steps) - steps) > 0:
                    assert fast[row, step].tolist() == slow
    assert torch.equal(deletion, ~insertion)


def test_area_is_that_of_trapezoids():
    scores = torch.rand(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for row, fast in zip(scores.tolist(), area_under(scores, 8).tolist(), strict=True):
        assert fast == pytest.approx(reference.area(row))
    assert float(area_under(torch.ones(4), 3)) == 1


@pytest.mark.parametrize("how", ["mean", "blur"])
def test_hidden_pixels_are_those_of_the_slow_twin(parts, how):
    run, store, examples = parts
    name = examples.questions[0].picture
    backbone = run.load_backbone()
    hide = HidePixels(examples.records.pictures, backbone, how, stages=True)
    kept = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    kept[0], kept[1] = True, False
    got = hide(name, kept)
    assert torch.allclose(got[:1], store[[name]], atol=2e-3, rtol=2e-3)  # nothing hidden: as stored
    whole = backbone.prepare(read(examples.records.pictures[name])[None])[0]
    instead = how
    if how == "blur":  # one pixel of it by hand
        instead = _substitute(whole[None], "blur", (4, 4))[0]
        reach, deviation = 16, 8.0  # pixels: a cell has 8
        factors = [math.exp(-((i / deviation) ** 2) / 2) for i in range(-reach, reach + 1)]
        pixel = torch.zeros(3)
        for i, down in enumerate(factors):
            for j, right in enumerate(factors):  # around row 5, column 20; the border is repeated beyond it
                y, x = min(max(5 + i - reach, 0), 31), min(max(20 + j - reach, 0), 31)
                pixel += down * right * whole[:, y, x]
        assert torch.allclose(instead[:, 5, 20], pixel / sum(factors) ** 2, atol=1e-4)
    for fast, mask in zip(got, kept, strict=True):
        seen = reference.hidden_picture(whole, mask, instead)
        with torch.no_grad():
            assert torch.allclose(fast, grids(backbone, seen[None], True)[0], atol=4e-3, rtol=2e-3)


def test_curves_are_those_of_the_slow_twin(parts):
    run, store, examples = parts
    hide, kind, steps = HideFeatures(store), "continuous-softmax", 3
    found = measure_faithfulness(run.model, examples, hide, [kind], questions=2, steps=steps)[kind]
    at = list(range(0, len(examples), len(examples) // 2))[:2]
    sums = {(c, r): torch.zeros(steps + 1, dtype=torch.float64) for c in CURVES for r in RANKINGS}
    for i in at:
        name, words = examples.questions[i].picture, examples.words[i][None]
        x = store[[name]].requires_grad_()
        visited = []
        scores, looked = run.model(x, words, attention=kind, visited=visited)
        answer = int(scores.argmax())
        scores[0, answer].backward()
        ties = torch.rand(16, generator=generator(24, *map(ord, name)))
        middles = [((i // 4 + 0.5) / 4 - 0.5, (i % 4 + 0.5) / 4 - 0.5) for i in range(16)]
        importance = {
            "attention": looked.density.pdf_on_grid(4, 4).flatten().tolist(),
            "random": ties.tolist(),
            "centre": [-round(a * a + b * b, 9) for a, b in middles],
            "gradient x input": (x.grad * (x.detach() - hide.mean)).sum(-1).flatten().tolist(),
            "traced": trace(run.model, looked, visited).shares[0].tolist(),
        }

        def see(kept, picture=name):
            whole = store[[picture]].flatten(0, 2)
            cells = [own if keep else hide.mean for own, keep in zip(whole, kept, strict=True)]
            return torch.stack(cells).reshape(1, 4, 4, -1)

        def score(features, words=words, answer=answer):
            with torch.no_grad():
                return float(run.model(features, words, attention=kind).scores[0, answer].sigmoid())

        for c in CURVES:
            for r in RANKINGS:
                slow = reference.curve(importance[r], ties.tolist(), steps, c == "insertion", see, score)
                sums[c, r] += torch.tensor(slow, dtype=torch.float64)
    for (c, r), total in sums.items():
        assert torch.allclose(torch.tensor(found.curves[c][r], dtype=torch.float64), total / 2, atol=1e-5), (c, r)
        assert found.areas[c][r].mean == pytest.approx(reference.area((total / 2).tolist()), abs=1e-5)
        if r in BASELINES:
            difference = found.areas[c]["attention"].mean - found.areas[c][r].mean
            assert found.gains[c][r].mean == pytest.approx(difference)
            assert found.gains[c][r].low <= found.gains[c][r].mean <= found.gains[c][r].high


class OneCell(torch.nn.Module):
    """Its answer rests on one cell; its attention is on that cell, or on another."""

    def __init__(self, used, shown):
        super().__init__()
        self.used, self.shown, self.cells = used, shown, (4, 4)
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.settings, self.head = small(), SimpleNamespace(weight=self.weight)

    def forward(self, features, words, rows=None, cell_mask=None, attention=None, visited=None):
        x = features.flatten(1, 2)
        score = (x[:, self.used] - 1).square().mean(-1)  # hidden: far from one
        weights = torch.nn.functional.one_hot(torch.tensor(self.shown), 16).float().expand(len(x), -1)
        scores = torch.stack([-4 * score * self.weight, torch.full_like(score, -50.0)], 1)
        return type("Said", (tuple,), {"scores": property(lambda s: s[0])})((scores, Looked(x, weights, weights, None)))

    def probabilities(self, scores):
        return scores.sigmoid()


class Ones:
    """Features of one, hidden by zeros."""

    about = "in features of one"

    def __call__(self, picture, kept):
        return kept.unsqueeze(-1).float().expand(-1, -1, -1, 3)


def test_a_model_that_shows_what_it_uses_and_one_that_does_not(parts):
    examples = parts[2]
    honest = measure_faithfulness(OneCell(5, 5), examples, Ones(), ["discrete-softmax"], questions=30)
    found = honest["discrete-softmax"]
    assert found.questions == 30
    assert found.better("deletion", "random")
    assert found.better("insertion", "random")
    # The first step hides two of sixteen cells, and with them the one that matters.
    assert found.curves["deletion"]["attention"][0] == pytest.approx(0.5)
    assert found.curves["deletion"]["attention"][1] < 0.02 < 0.4 < found.curves["insertion"]["attention"][1]
    assert "more than as many cells drawn at random" in verdict(found)
    dishonest = measure_faithfulness(OneCell(5, 0), examples, Ones(), ["discrete-softmax"], questions=30)
    other = dishonest["discrete-softmax"]
    assert other.better("deletion", "centre") is False
    assert "less about the answer than" in verdict(other)
    assert "discrete-softmax" in faithfulness_table({"discrete-softmax": other})
    assert found.gains["deletion"]["traced"] == (0, 0, 0)  # nothing is mixed: the same order
    assert found.better("deletion", "traced") is None


def test_json_and_back(parts):
    run, store, examples = parts
    found = measure_faithfulness(run.model, examples, HideFeatures(store), ["discrete-softmax"], questions=2, steps=2)
    one = found["discrete-softmax"]
    assert Faithfulness.from_json(json.loads(json.dumps(one.to_json()))) == one
    with pytest.raises(ValueError, match="points"):
        Faithfulness.from_json(one.to_json() | {"shares": [0.0, 1.0]})
    assert str(MeanInterval(0.5, 0.25, 0.75)) == "0.500 (0.250 to 0.750)"


def test_what_is_hidden_when_pictures_or_backbone_are_missing(parts, tmp_path):
    run, store, examples = parts
    assert isinstance(choose_hiding(run, examples.records, store), HidePixels)
    gone = replace(examples.records, pictures=dict.fromkeys(examples.records.pictures, tmp_path / "no.png"))
    assert isinstance(choose_hiding(run, gone, store), HideFeatures)
    with pytest.raises(Problem, match="cannot be hidden in pictures"):
        choose_hiding(run, gone, store, "blur")
    with pytest.raises(ValueError, match="hide"):
        choose_hiding(run, gone, store, "noise")


def test_evaluate_and_report_say_it(place, tmp_path):
    said, lines = evaluate_run(place / "run", place / "scenes", [], place / "run" / "evaluation", faithfulness=3), []
    assert "Faithfulness, 3 questions, cells hidden in the picture, by its mean: deletion" in said
    results = Results.read(place / "run" / "evaluation")
    split, found = results.faithfulness("discrete-softmax")
    assert (split, found.questions) == ("test", 3)
    text = write_run_report(place / "run", tmp_path / "report.html").path.read_text()
    assert "Does the answer rest on what is shown?" in text
    assert text.count("<polyline") == 2 * len(RANKINGS)
    evaluate_run(place / "run", place / "scenes", [], faithfulness=2, hide="features", progress=lines.append)
    assert any("hiding cells in the stored features" in line and "about" in line for line in lines)


def test_options_that_do_not_fit(place):
    for options, words in ((["--hide", "blur"], "--faithfulness 100"), (["--hide", "fog"], "no --hide fog")):
        command = [str(place / "run"), str(place / "scenes"), *options]
        ran = CliRunner().invoke(application("evaluate"), ["evaluate", *command])
        assert ran.exit_code != 0
        assert words in f"{ran.output}{ran.exception}"
