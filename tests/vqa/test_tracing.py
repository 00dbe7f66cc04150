"""Attention traced back through self-attention: against sums over all pairs of cells, and what must hold."""

import json
from dataclasses import replace

import pytest
import torch
from reference.tracing import shares_by_pairs
from torch.autograd import gradcheck

from regard._rounded import rounded
from regard.attention.lazy import LazyWeights
from regard.backbones import make_backbone
from regard.report import Entry, write_report
from regard.vqa.mcan import MCAN
from regard.vqa.predict import Predictor
from regard.vqa.records import Answers
from regard.vqa.settings import small
from regard.vqa.tracing import trace, traced_shares
from regard.vqa.words import Words

SIZES = {"width": 16, "heads": 2, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}


def parts(seed=0, heads=2, cells=5, width=3, dim=6):
    draw = torch.Generator().manual_seed(seed)

    def new(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    q, k, v = (new(2, heads, cells, width) for _ in range(3))
    return new(2, cells).softmax(-1), q, k, v, new(heads, width, dim), new(2, cells, dim), new(dim)


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_those_of_the_slow_twin_lazy_or_not(seed):
    shares, q, k, v, projection, before, bias = parts(seed)
    p = (q @ k.mT / 3**0.5).softmax(-1)
    dense = traced_shares(shares, p, v, projection, before, bias)
    lazy = traced_shares(shares, LazyWeights(q, k), v, projection, before, bias)
    slow = shares_by_pairs(shares, p, v, projection, before, bias)
    assert torch.allclose(dense, slow, atol=1e-10)
    assert torch.allclose(lazy, slow, atol=1e-10)
    assert torch.allclose(dense.sum(-1), shares.sum(-1))  # nothing is lost


def test_gradients():
    shares, q, k, v, projection, before, bias = (x.requires_grad_() for x in parts(cells=3, width=2, dim=3))
    assert gradcheck(
        lambda *x: traced_shares(x[0], LazyWeights(x[1], x[2]), *x[3:]), (shares, q, k, v, projection, before, bias)
    )


def test_without_attention_nothing_moves_and_an_output_of_zero_keeps_its_share():
    shares, q, k, v, projection, before, bias = parts()
    p = (q @ k.mT).softmax(-1)
    assert torch.allclose(traced_shares(shares, p, v, torch.zeros_like(projection), before, bias), shares)
    nowhere = traced_shares(shares, p, 0 * v, projection, 0 * before, 0 * bias)
    assert torch.equal(nowhere, shares)


def model_of(**changes):
    torch.manual_seed(0)
    return MCAN(small(**(SIZES | changes)), vocabulary=20, answers=5, cells=(3, 3), features=12).eval()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"before": 1, "guided_first": True, "layers": 2}, {"map": "sparsemax"}], ids=str
)
def test_a_model_is_traced_layer_by_layer(changes, norm_first):
    model = model_of(norm_first=norm_first, **changes).double()
    features, words = torch.randn(2, 3, 3, 12, dtype=torch.float64), torch.randint(1, 20, (2, 5))
    visited = []
    _, looked = model(features, words, visited=visited)
    assert len(visited) == model.settings.before + model.settings.layers
    traced = trace(model, looked, visited)
    shares = looked.effective
    for layer, x in reversed(visited):
        inner = layer.norm1(x) if norm_first else x
        attention = layer.self_attn
        _, p = attention(inner, inner, inner, average_attn_weights=False)
        _, _, v = attention.heads_of(inner)
        projection = attention.out_proj.weight.T.reshape(2, 8, 16)
        shares = shares_by_pairs(shares, p, v, projection, x, attention.out_proj.bias)
    assert torch.allclose(traced.shares, shares, atol=1e-8)
    assert torch.allclose(traced.moved, (shares - looked.effective).abs().sum(-1) / 2, atol=1e-8)
    assert (traced.moved > 0.01).all()


def test_what_is_read_by_itself_has_not_moved():
    model = model_of(reads="own")
    visited = []
    _, looked = model(torch.randn(1, 3, 3, 12), torch.randint(1, 20, (1, 5)), visited=visited)
    traced = trace(model, looked, visited)
    assert torch.equal(traced.shares, looked.effective)
    assert float(traced.moved) == 0


def test_a_prediction_has_where_it_came_from_and_the_report_shows_it(tmp_path):
    backbone = make_backbone("small", size=12, widths=[12], depths=[1], stem_stride=4)
    words = Words.of(["What is it?"])
    picture = torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    said = {}
    for reads in ("mixed", "own"):
        torch.manual_seed(0)
        model = MCAN(small(**SIZES, reads=reads), vocabulary=len(words), answers=2, cells=(3, 3), features=12)
        predictor = Predictor(model, backbone, words, Answers(("a cat", "a dog")))
        said[reads] = predictor.ask(picture, "What is it?", "discrete-sparsemax")
    mixed, own = said["mixed"], said["own"]
    assert mixed.traced.shape == (3, 3)
    assert own.moved == 0 < mixed.moved
    assert torch.equal(own.traced, own.effective)
    assert mixed.to_json()["moved"] == pytest.approx(mixed.moved, abs=1e-6)
    assert json.loads(json.dumps(mixed.to_json()))["traced_weights"] == rounded(mixed.traced)
    for prediction, moved in ((mixed, 0.25), (mixed, 0.05), (own, 0.0), (own, None)):
        entry = Entry(picture, "What is it?", [replace(prediction, moved=moved)])
        text = write_report(tmp_path / "report.html", [entry]).read_text()
        assert ("25 % of what it read there came from other places" in text) == (moved == 0.25)


def test_densities_inside_the_layers_are_not_traced():
    model = model_of(self_attention="continuous-softmax")
    visited = []
    _, looked = model(torch.randn(1, 3, 3, 12), torch.randint(1, 20, (1, 5)), visited=visited)
    assert trace(model, looked, visited) is None
