"""AttentionPool against sums over features, one glimpse at a time."""

from functools import partial

import pytest
import torch
from reference.nn import pool as reference

import regard
from regard.nn import AttentionPool, Entmax

B, L, D = 3, 9, 6
MAPS = {
    "softmax": lambda: (regard.softmax, lambda m, g: m),
    "sparsemax": lambda: (regard.sparsemax, lambda m, g: m),
    "tvmax": lambda: (partial(regard.tvmax, gamma=0.1, shape=(3, 3)), lambda m, g: m),
    "learned": lambda: (Entmax(2), lambda m, g: partial(regard.entmax, alpha=m.alpha[g, 0])),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("map_name", MAPS)
def test_equals_the_reference(map_name, masked):
    map_, one_map = MAPS[map_name]()
    layer = AttentionPool(D, hidden=5, glimpses=2, out=4, map=map_).double()
    torch.nn.init.normal_(layer.score[-1].weight, std=2.0)
    if isinstance(map_, Entmax):
        torch.nn.init.normal_(map_.free)
    x = torch.randn(B, L, D, dtype=torch.float64)
    mask = torch.rand(B, L) < 0.6 if masked else torch.ones(B, L, dtype=torch.bool)
    context, weights = layer(x, mask if masked else None)
    assert context.shape == (B, 4)
    assert weights.shape == (B, 2, L)
    for b in range(B):
        expected = reference(layer, partial(one_map, map_), x[b], mask[b])
        torch.testing.assert_close((context[b], weights[b]), expected)
        alone = layer(x[b], mask[b])
        torch.testing.assert_close((alone.context, alone.weights), expected)


def test_without_a_last_layer_glimpses_lie_side_by_side():
    layer = AttentionPool(D, glimpses=3)
    x = torch.randn(B, L, D)
    context, weights = layer(x)
    torch.testing.assert_close(context.unflatten(-1, (3, D)), torch.einsum("bgl,bld->bgd", weights, x))
    assert not any(name.startswith("merge") for name, _ in layer.named_parameters())


def test_gradients():
    layer = AttentionPool(3, glimpses=2, out=2, map=regard.entmax).double()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1] = False
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, mask), x)
    context, weights = layer(x, mask)
    assert (weights[1] == 0).all()
    assert (context[1] == layer.merge.bias).all()
    assert (torch.autograd.grad(context.sum(), x)[0][1] == 0).all()


def test_dropout_in_training_alone():
    layer = AttentionPool(D, hidden=64, dropout=0.5)
    x = torch.randn(B, L, D)
    assert (layer(x).weights != layer(x).weights).any()
    layer.eval()
    assert (layer(x).weights == layer(x).weights).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: AttentionPool(0), ValueError, r"^dim: got 0"),
        (lambda: AttentionPool(D, glimpses=0), ValueError, r"^glimpses: got 0"),
        (lambda: AttentionPool(D, dropout=1), ValueError, r"^dropout: got 1"),
        (lambda: AttentionPool(D, map="softermax"), ValueError, r"^map: got 'softermax', expected one of softmax, "),
        (lambda: AttentionPool(D)(torch.zeros(L, 4)), ValueError, r"^x: got width 4, expected 6"),
        (lambda: AttentionPool(D)(torch.zeros(D)), ValueError, r"^x: got shape \(6,\), expected at least 2"),
        (
            lambda: AttentionPool(D)(torch.zeros(B, L, D), torch.ones(B, 4, dtype=torch.bool)),
            ValueError,
            r"^mask: got shape \(3, 4\), .* \(3, 9\)",
        ),
        (lambda: AttentionPool(D)(torch.zeros(L, D), torch.ones(L)), TypeError, r"^mask: got torch.float32"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_repr():
    assert "map=Sparsemax()" in repr(AttentionPool(D, map=regard.sparsemax))
    assert "(map): Entmax(heads=1, alpha=1.5)" in repr(AttentionPool(D, map=Entmax()))
