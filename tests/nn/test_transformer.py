"""The layers are torch's with dot and softmax, before and after the norms; with other maps they are what is written."""

import math

import pytest
import torch
from torch.nn.functional import gelu

import regard
from regard.nn import (
    ContinuousSelfAttention,
    Entmax,
    MultiheadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)

B, L, LK, E, H, F = 2, 5, 7, 16, 4, 24
LAYERS = {
    TransformerEncoderLayer: torch.nn.TransformerEncoderLayer,
    TransformerDecoderLayer: torch.nn.TransformerDecoderLayer,
}


def pair(ours, **options):
    """Torch's layer with large weights, and ours with the same."""
    options = {"batch_first": True, "dropout": 0.0} | options
    theirs = LAYERS[ours](E, H, F, dtype=torch.float64, **options)
    with torch.no_grad():
        for x in theirs.parameters():
            x.copy_(torch.randn_like(x) / math.sqrt(x.shape[-1]))
    layer = ours(E, H, F, dtype=torch.float64, **options)
    layer.load_state_dict(theirs.state_dict())
    return theirs, layer


def inputs(batch_first=True):
    x, memory = torch.randn(B, L, E, dtype=torch.float64), torch.randn(B, LK, E, dtype=torch.float64)
    return [y.requires_grad_() if batch_first else y.transpose(0, 1).requires_grad_() for y in (x, memory)]


OPTIONS = [{}, {"norm_first": True}, {"batch_first": False}, {"activation": "gelu"}, {"activation": gelu}]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [*OPTIONS, {"bias": False, "norm_first": True}, {"layer_norm_eps": 0.1}], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_equals_torch(kind, options, masked):
    theirs, ours = pair(kind, **options)
    x, memory = inputs(options.get("batch_first", True))
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[0, 3:] = True
    keys = torch.zeros(B, LK, dtype=torch.bool)
    keys[1, 2:] = True
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    if kind is TransformerEncoderLayer:
        given = {"src": x}
        masks = {"src_mask": later, "src_key_padding_mask": padding}
    else:
        given = {"tgt": x, "memory": memory}
        masks = {"tgt_mask": later, "tgt_key_padding_mask": padding, "memory_key_padding_mask": keys}
        masks["memory_mask"] = torch.zeros(L, LK, dtype=torch.bool).index_fill(1, torch.tensor([1]), True)
    results = []
    for layer in (theirs, ours):
        out = layer(**given, **(masks if masked else {}))
        results.append((out, *torch.autograd.grad(out.square().mean(), (*given.values(), *layer.parameters()))))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_causal_without_a_mask():
    _, ours = pair(TransformerEncoderLayer)
    x, memory = inputs()
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x, is_causal=True), ours(x, src_mask=later))
    _, ours = pair(TransformerDecoderLayer)
    torch.testing.assert_close(ours(x, memory, tgt_is_causal=True), ours(x, memory, tgt_mask=later))
    later = torch.ones(L, LK, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x, memory, memory_is_causal=True), ours(x, memory, memory_mask=later))


@pytest.mark.parametrize("norm_first", [True, False])
def test_stack_of_torch(norm_first):
    theirs, ours = pair(TransformerEncoderLayer, norm_first=norm_first)
    x = inputs()[0]
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[0, 3:] = True
    stacks = [torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False) for layer in (theirs, ours)]
    how = {"mask": torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)}
    for given in ({}, {"src_key_padding_mask": padding}, how):
        torch.testing.assert_close(stacks[1](x, **given), stacks[0](x, **given))


def test_maps_reach_every_attention():
    """By hand, with the attention alone taken as given."""
    layer = TransformerDecoderLayer(E, H, F, 0.0, batch_first=True, norm_first=True, map=regard.sparsemax).double()
    x, memory = inputs()
    y = layer.norm1(x)
    h = x + layer.self_attn(y, y, y)[0]
    h = h + layer.multihead_attn(layer.norm2(h), memory, memory)[0]
    h = h + layer.linear2(torch.relu(layer.linear1(layer.norm3(h))))
    torch.testing.assert_close(layer(x, memory), h)
    assert layer.self_attn.map is layer.multihead_attn.map == regard.Sparsemax()


def test_each_attention_learns_its_own_alpha():
    layer = TransformerDecoderLayer(E, H, F, batch_first=True, map=Entmax(H)).double()
    alphas = [layer.self_attn.map.free, layer.multihead_attn.map.free]
    assert alphas[0] is not alphas[1]
    layer(*inputs()).square().sum().backward()
    assert all(a.grad.abs().max() > 0 for a in alphas)


def test_dropout_in_training_alone():
    layer = TransformerEncoderLayer(E, H, F, batch_first=True, dropout=0.5).double()
    x = inputs()[0]
    assert (layer(x) != layer(x)).any()
    layer.eval()
    assert (layer(x) == layer(x)).all()
    assert layer.self_attn.dropout == 0.5


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match=r"^activation: got 'tanh', expected 'relu', 'gelu' or a function"):
        TransformerEncoderLayer(E, H, activation="tanh")
    with pytest.raises(ValueError, match=r"^dropout: got 2"):
        TransformerEncoderLayer(E, H, dropout=2)
    with pytest.raises(ValueError, match=r"^dim_feedforward: got 0"):
        TransformerEncoderLayer(E, H, 0)
    with pytest.raises(ValueError, match=r"^num_heads: got 3"):
        TransformerEncoderLayer(E, 3)


def test_repr():
    text = repr(TransformerEncoderLayer(E, H, norm_first=True, map=regard.sparsemax))
    assert "norm_first=True" in text
    assert "map=Sparsemax()" in text
    assert isinstance(TransformerEncoderLayer(E, H).self_attn, MultiheadAttention)


def continuous(**options):
    return ContinuousSelfAttention(E, H, (2, 3), **options)


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_module_in_place_of_self_attention(norm_first, alpha):
    """The layer by hand, with the given module between norm and residual; the mask of torch, turned around."""
    options = {"batch_first": True, "dropout": 0.0, "norm_first": norm_first}
    layer = TransformerEncoderLayer(E, H, F, **options, self_attention=continuous(alpha=alpha)).double()
    x, padding = torch.randn(2, 6, E, dtype=torch.float64), torch.tensor([[False] * 6, [True] + [False] * 5])
    for masked in (None, padding):
        mask = None if masked is None else ~masked
        if norm_first:
            y = x + layer.self_attn(layer.norm1(x), mask)
            expected = y + layer.linear2(layer.linear1(layer.norm2(y)).relu())
        else:
            y = layer.norm1(x + layer.self_attn(x, mask))
            expected = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
        torch.testing.assert_close(layer(x, src_key_padding_mask=masked), expected)
    assert not torch.allclose(layer(x)[1], layer(x, src_key_padding_mask=padding)[1])
    guided = TransformerDecoderLayer(
        E, H, F, **options, self_attention=continuous(alpha=alpha), map=regard.sparsemax
    ).double()
    memory = torch.randn(2, 4, E, dtype=torch.float64)
    guided(x, memory, tgt_key_padding_mask=padding).sum().backward()
    assert guided.multihead_attn.map == regard.Sparsemax()
    assert all(p.grad is not None for p in guided.parameters())


def test_a_given_module_is_not_half_ignored():
    with pytest.raises(ValueError, match=r"^self_attention: got a module, expected batch_first=True"):
        TransformerEncoderLayer(E, H, F, self_attention=continuous())
    with pytest.raises(ValueError, match=f"^nhead: got {2 * H}, expected {H}, the heads of self_attention"):
        TransformerEncoderLayer(E, 2 * H, F, batch_first=True, self_attention=continuous())
    with pytest.raises(ValueError, match="expected Dot\\(\\) and softmax beside it"):
        TransformerEncoderLayer(E, H, F, batch_first=True, self_attention=continuous(), map=regard.sparsemax)
    with pytest.raises(TypeError, match=r"^self_attention: got str, expected a module"):
        TransformerEncoderLayer(E, H, F, batch_first=True, self_attention="continuous")
    layer, x = TransformerEncoderLayer(E, H, F, batch_first=True, self_attention=continuous()), torch.randn(1, 6, E)
    for masks in ({"src_mask": torch.zeros(6, 6)}, {"is_causal": True}):
        with pytest.raises(ValueError, match=r"^mask: got a mask of queries and keys, expected None"):
            layer(x, **masks)
    with pytest.raises(TypeError, match=r"^key_padding_mask: got torch.float32"):
        layer(x, src_key_padding_mask=torch.zeros(1, 6))
