"""Wasserstein self-attention: shapes, masks, what it returns, and that it learns."""

import pytest
import torch

from regard.maps.entmax import softmax
from regard.maps.gates import inverse
from regard.maps.sinkhorn import Sinkhorn, sinkhorn
from regard.nn import Gate, WassersteinSelfAttention
from regard.wasserstein.affinities import BuresW2, EmpiricalW2, EntropicW2, GaussianW2, HistogramW1, Unsquared

AFFINITIES = {
    "gaussian": GaussianW2(),
    "empirical": EmpiricalW2(),
    "unsquared": Unsquared(GaussianW2()),
    "bures": BuresW2(2),
    "histogram": HistogramW1(),
    "entropic": EntropicW2(2, eps=1.0, iterations=50),
}
MAPS = {"softmax": softmax, "inverse": inverse, "gate": Gate(2), "sinkhorn": Sinkhorn()}


@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("map_", MAPS)
def test_every_distance_with_every_conversion(affinity: str, map_: str) -> None:
    layer = WassersteinSelfAttention(8, 2, AFFINITIES[affinity], MAPS[map_])
    x = torch.randn(3, 5, 8)
    y, weights = layer(x, return_weights=True)
    assert weights.shape == (3, 2, 5, 5)
    torch.testing.assert_close(layer(x), y, rtol=1e-4, atol=1e-5)
    v = layer._heads(layer.value(x))
    torch.testing.assert_close(layer.out((weights @ v).transpose(1, 2).flatten(-2)), y)
    if map_ != "gate":
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert layer.query.weight.grad.abs().max() > 0


def test_masks_and_dropout() -> None:
    layer = WassersteinSelfAttention(8, 2, dropout=0.5).eval()
    x = torch.randn(2, 5, 8)
    padding = torch.ones(2, 1, 5, dtype=torch.bool)
    padding[0, 0, 3:] = False
    y, weights = layer(x, padding, return_weights=True)
    assert weights[0, :, :, 3:].eq(0).all()
    torch.testing.assert_close(y[0, :3], layer(x[:1, :3])[0])
    torch.testing.assert_close(layer(x, padding), y)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, causal)[:, 0], layer(x[:, :1])[:, 0])
    nobody = torch.zeros(5, 5, dtype=torch.bool)
    assert (layer(x, nobody) == layer.out.bias).all()
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    assert "GaussianW2" in repr(type(layer.affinity))


def test_a_learnable_gate_has_one_bias_and_temperature_for_each_head() -> None:
    map_ = Gate(heads=2, bias=1.0, tau=0.5)
    s = -torch.rand(3, 2, 4, 4)
    torch.testing.assert_close(map_(s), torch.sigmoid((1 + s) / 0.5))
    layer = WassersteinSelfAttention(8, 2, Unsquared(GaussianW2()), map_)
    layer(torch.randn(3, 5, 8)).sum().backward()
    assert map_.bias.grad is not None
    assert map_.log_tau.grad is not None
    assert "map.bias" in dict(layer.named_parameters())


def test_the_function_sinkhorn_serves_as_a_map() -> None:
    layer = WassersteinSelfAttention(8, 2, map=sinkhorn)
    x = torch.randn(3, 5, 8)
    y, weights = layer(x, return_weights=True)
    torch.testing.assert_close(layer(x), y)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: WassersteinSelfAttention(8, 3), "heads: got 3"),
        (lambda: WassersteinSelfAttention(8, 2, dropout=1.0), "dropout: got 1"),
        (lambda: Gate(tau=0.0), "tau: got 0"),
        (lambda: WassersteinSelfAttention(8)(torch.randn(8)), "x: got shape"),
    ],
)
def test_complaints(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_an_affinity_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="affinity: got str"):
        WassersteinSelfAttention(8, affinity="gaussian")
