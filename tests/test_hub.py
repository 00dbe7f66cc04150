"""Models by the conventions of the Hugging Face Hub: saved, loaded, pushed; and what is refused."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_hub import COMMIT, hub
from huggingface_hub import ModelCard

import regard
from regard import continuous as C
from regard._problem import Problem
from regard.backbones import Backbone, Preparation, SmallResNet, fingerprint, make_backbone
from regard.nn import AttentionPool, ContinuousAttentionPool, ContinuousSelfAttention, Entmax
from regard.vqa import Predictor
from regard.vqa.mcan import MCAN
from regard.vqa.records import Answers
from regard.vqa.settings import small
from regard.vqa.words import Words

POOLS = {
    "softmax": lambda: AttentionPool(6, dropout=0.1),
    "sparsemax": lambda: AttentionPool(6, 5, glimpses=2, out=3, map=regard.sparsemax),
    "entmax": lambda: AttentionPool(6, map=partial(regard.entmax, alpha=1.3)),
    "tvmax": lambda: AttentionPool(6, map=partial(regard.tvmax, gamma=0.1, shape=(4, 3))),
    "learned": lambda: AttentionPool(6, glimpses=2, map=Entmax(2, 1.7)),
    "sinkhorn": lambda: AttentionPool(6, map=regard.Sinkhorn(eps=0.5, iterations=4)),
    "gaussian": lambda: ContinuousAttentionPool(6, (4, 3), hidden=5, out=2),
    "paraboloid": lambda: ContinuousAttentionPool(
        6, (4, 3), C.ParaboloidBasis.on_grid(3, 2), partial(C.match_moments, alpha=2), padding=True
    ),
    "mixture": lambda: ContinuousAttentionPool(
        6, C.grid(4, 3, at="corner"), fit=partial(C.fit_mixture, components=2, mixing="sparsemax")
    ),
    "points": lambda: ContinuousAttentionPool(6, C.Locations(torch.rand(12, 2)), C.FourierBasis.on_grid(2, 2)),
    "self": lambda: ContinuousSelfAttention(6, 2, (4, 3), alpha=2, penalty=0.02),
    "line": lambda: ContinuousSelfAttention(6, 3, 12, C.FourierBasis.on_line(5)),
}


def tiny_predictor():
    backbone = make_backbone("small", size=16, widths=[4, 8], depths=[1, 1], stem_stride=2)
    words, answers = Words.of(["What colour is the ring?"]), Answers(("red", "déjà vu"))
    sizes = {"width": 8, "heads": 2, "words": 4, "feed_forward": 8, "flat": 8, "fused": 8}
    model = MCAN(
        small(attention="continuous-softmax", **sizes),
        vocabulary=len(words),
        answers=len(answers),
        cells=(4, 4),
        features=8,
    )
    return Predictor(trained(model), trained(backbone), words, answers)


def trained(module):
    """Other numbers everywhere, so that what is not loaded shows."""
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) * 0.5 + 0.1)
    return module.eval()


def output(module, x):
    out = module(x)
    return out if isinstance(out, torch.Tensor) else out[0]


def run_the_card(folder, monkeypatch):
    """Do what the card says, in the folder above, and return the names that it made."""
    monkeypatch.chdir(folder.parent)
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(code) == 1
    names = {}
    exec(code[0], names)
    return names


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_saved_and_loaded(name, tmp_path, monkeypatch):
    pool = trained(POOLS[name]())
    folder = pool.save_pretrained(tmp_path / "pool")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = type(pool).from_pretrained(folder)
    assert not again.training
    x = torch.randn(2, 12, 6)
    assert torch.equal(output(again, x), output(pool, x))
    config = json.loads((folder / "config.json").read_text())
    again.save_pretrained(tmp_path / "second")
    assert json.loads((tmp_path / "second" / "config.json").read_text()) == config
    assert run_the_card(folder, monkeypatch)["out"] is not None


def test_a_grid_is_spelled_by_its_shape(tmp_path):
    for at in ("centre", "corner"):
        folder = ContinuousAttentionPool(6, C.grid(4, 3, at=at)).save_pretrained(tmp_path / at)
        assert json.loads((folder / "config.json").read_text())["where"] == {"cells": [4, 3], "at": at}


def test_without_the_package_of_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for reach in (lambda: AttentionPool.from_pretrained("me/pool"), lambda: AttentionPool(4).push_to_hub("me/pool")):
        with pytest.raises(Problem, match=r"pip install .*\[hf\]"):
            reach()


def test_what_cannot_be_spelled_is_not_saved(tmp_path):
    own = lambda s, *, mask: s.softmax(-1)  # noqa: E731
    for pool, argument in (
        (AttentionPool(4, map=own), "map"),
        (AttentionPool(4, map=partial(regard.entmax, alpha=torch.tensor(1.5))), "map"),
        (ContinuousAttentionPool(4, (2, 2), fit=lambda w, at, *, mask: C.match_moments(w, at)), "fit"),
    ):
        with pytest.raises(TypeError, match=rf"^{argument}: got .* to be saved\. Save its state_dict"):
            pool.save_pretrained(tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def test_a_backbone_saved_and_loaded(tmp_path, monkeypatch):
    backbone = trained(make_backbone("small", size=12, widths=[4, 8], depths=[1, 2], nonlocal_after=[(0, 0)]))
    folder = backbone.save_pretrained(tmp_path / "backbone")
    again = Backbone.from_pretrained(folder)
    assert fingerprint(again) == fingerprint(backbone)
    assert again.config == backbone.config
    assert not again.training
    assert run_the_card(folder, monkeypatch)["features"].shape == (2, 8, 6, 6)
    given = Backbone(SmallResNet((4,), (1,)), Preparation(8))
    given.save_pretrained(tmp_path / "given")
    assert 'load_backbone("given", network)' in (tmp_path / "given" / "README.md").read_text()


def test_a_model_that_answers_saved_and_loaded(tmp_path, monkeypatch):
    predictor = tiny_predictor()
    picture = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
    expected = predictor.ask(picture, "What colour?").to_json()
    predictor.ask(picture, "What colour?", "discrete-sparsemax")  # what was asked last is not what is saved
    folder = predictor.save_pretrained(tmp_path / "model")
    again = Predictor.from_pretrained(folder)
    assert again.attention == "continuous-softmax"
    for kind in (None, "discrete-softmax"):
        told = [{**p.ask(picture, "What colour?", kind).to_json(), "seconds": 0} for p in (predictor, again)]
        assert told[0] == told[1]
    assert {**again.ask(picture, "What colour?").to_json(), "seconds": 0} == {**expected, "seconds": 0}
    names = run_the_card(folder, monkeypatch)
    assert names["prediction"].answer in ("red", "déjà vu")
    assert "license" not in ModelCard.load(folder / "README.md").data.to_dict()


def test_the_network_alone(tmp_path, monkeypatch):
    predictor = tiny_predictor()
    predictor.save_pretrained(tmp_path / "model")
    network = MCAN.from_pretrained(tmp_path / "model")
    network.save_pretrained(tmp_path / "network")
    assert run_the_card(tmp_path / "network", monkeypatch)["scores"].shape == (1, 2)
    x, words = torch.randn(2, 4, 4, 8), torch.randint(1, 6, (2, 14))
    again = MCAN.from_pretrained(tmp_path / "network")
    assert torch.equal(again(x, words).scores, predictor.model(x, words).scores)
    with pytest.raises(Problem, match="network alone"):
        Predictor.from_pretrained(tmp_path / "network")


@pytest.fixture
def pool(tmp_path):
    """A saved pool, and a function that changes its config."""
    folder = AttentionPool(4, map=partial(regard.entmax, alpha=1.5)).save_pretrained(tmp_path / "pool")

    def change(**keys):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | keys).items() if v != "gone"}))

    return folder, change


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"format": 2}, r"is of format 2, and this regard reads up to 1\. Update it: .*pip install"),
        ({"format": "new"}, r"format is 'new', not a number"),
        ({"kind": "backbone"}, r"holds a backbone, not a attention-pool"),
        ({"colour": 3, "shape": 1}, r"has keys that this regard does not know: colour, shape\. Take them out\.$"),
        ({"dim": "gone"}, r"does not describe a AttentionPool: 'dim' is missing"),
        ({"dim": "four"}, r"does not describe a AttentionPool: dim: got 'four', expected a whole number"),
        ({"dim": 5}, r"model\.safetensors is of another model: score\.0\.weight has \(4, 4\), not \(4, 5\)"),
        ({"out": 2}, r"merge\.bias has nothing, not \(2,\)"),
        ({"map": {"name": "os.system"}}, r"map: got 'os.system', expected one of 'softmax', 'sparsemax'"),
        ({"map": {"name": "entmax", "beta": 2}}, r"map: got entmax with beta = 2, expected one of alpha"),
        ({"map": {"name": "entmax", "alpha": {}}}, r"map: got entmax with alpha = {}"),
        ({"map": 3}, r"does not describe a AttentionPool"),
    ],
)
def test_a_config_that_does_not_fit(pool, keys, words):
    folder, change = pool
    change(**keys)
    with pytest.raises(Problem, match=words) as caught:
        AttentionPool.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_whole(pool, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder, _ = pool
    weights = (folder / "model.safetensors").read_bytes()
    torch.save({"score.0.weight": torch.zeros(4, 4)}, folder / "pytorch_model.bin")  # not looked at, ever
    (folder / "model.safetensors").unlink()
    with pytest.raises(Problem, match=r"model\.safetensors is missing"):
        AttentionPool.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(weights[:-5])
    with pytest.raises(Problem, match="is broken"):
        AttentionPool.from_pretrained(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(Problem, match="is not a config"):
        AttentionPool.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(Problem, match="has no readable config"):
        AttentionPool.from_pretrained(folder)
    for nowhere in (folder / "gone", "./gone", folder / "README.md"):
        with pytest.raises(Problem, match="is not a folder with a model"):
            AttentionPool.from_pretrained(nowhere)
    with pytest.raises(Problem, match="words that are not a name is no folder, and the Hub did not give it"):
        AttentionPool.from_pretrained("words that are not a name")


def test_other_kinds_and_configs_of_backbones(tmp_path):
    folder = make_backbone("small", widths=[4], depths=[1]).save_pretrained(tmp_path / "b")
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"format": 7}, "is of format 7"),
        ({"colour": 1}, "does not know: colour"),
        ({"options": {"hats": 2}}, "hats"),
        ({"family": "transformers", "class": "pipeline"}, "pipeline is no model of transformers"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(Problem, match=words):
            Backbone.from_pretrained(folder)


def test_a_vocabulary_of_another_model(tmp_path):
    folder = tiny_predictor().save_pretrained(tmp_path / "model")
    known = json.loads((folder / "vocabulary.json").read_text())
    for other in ({"words": ["a", "b", "c", "d", "e"]}, {"answers": ["red", "blue"]}):
        (folder / "vocabulary.json").write_text(json.dumps(known | other))
        with pytest.raises(Problem, match="belongs to another run"):
            Predictor.from_pretrained(folder)


def test_saving_is_whole_or_not_at_all(pool, monkeypatch):
    """What fails half way leaves the old files, and none beside them."""
    folder, _ = pool
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def fails(path, content):
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_bytes", fails)
    with pytest.raises(OSError, match="full"):
        AttentionPool(9).save_pretrained(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


CLIENT = """
import sys, torch
sys.path.insert(0, {tests!r})
from test_hub import tiny_predictor
from regard.nn import AttentionPool
from regard.vqa import Predictor
torch.manual_seed(0)
pool = AttentionPool(6)
print(pool.push_to_hub("me/pool", private=True, token="hf_secret", commit_message="A pool"))
again = AttentionPool.from_pretrained("me/pool", revision="main", token="hf_secret")
assert all(torch.equal(a, b) for a, b in zip(again.parameters(), pool.parameters(), strict=True))
predictor = tiny_predictor()
predictor.push_to_hub("me/model", token="hf_secret")
again = Predictor.from_pretrained("me/model", token="hf_secret")
picture = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
assert again.ask(picture, "What colour?").top == predictor.ask(picture, "What colour?").top
for name, revision in (("me/none", None), ("me/pool", "v7")):
    try:
        AttentionPool.from_pretrained(name, revision=revision)
    except ValueError as error:
        print(type(error).__name__, str(error).count("\\n"), "the Hub did not give it" in str(error))
"""


def test_pushed_to_a_hub_and_loaded_from_it(tmp_path):
    """The real client against a Hub on this machine."""
    with hub() as server:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {
            "HF_ENDPOINT": server.address,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        code = CLIENT.format(tests=os.path.dirname(__file__))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
        )
    assert done.stdout.splitlines() == [
        f"{server.address}/me/pool/commit/{COMMIT}",
        "Problem 0 True",
        "Problem 0 True",
    ], done.stderr
    assert server.created == [("me/pool", True), ("me/model", False)]
    assert server.messages == ["A pool", "Upload a model of regard"]
    assert "Bearer hf_secret" in server.tokens
    assert sorted(server.repositories["me/pool"]) == ["README.md", "config.json", "model.safetensors"]
    assert sorted(server.repositories["me/model"]) == [
        "README.md",
        "backbone/config.json",
        "backbone/model.safetensors",
        "config.json",
        "model.safetensors",
        "vocabulary.json",
    ]
    assert 'AttentionPool.from_pretrained("me/pool")' in server.repositories["me/pool"]["README.md"].decode()
