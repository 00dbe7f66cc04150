"""MultiheadAttention in the place of torch's: in its layers, in training and evaluation, and with nested tensors."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import regard
from regard.nn import Entmax, MultiheadAttention

B, H, L, E = 3, 4, 6, 16
MAPS = {
    "softmax": lambda: regard.softmax,
    "sparsemax": lambda: regard.sparsemax,
    "entmax": lambda: partial(regard.entmax, alpha=1.3),
    "learned": lambda: Entmax(H),
}


def replaced(model, **options):
    """A copy of torch's model with our attention and its weights in the place of every attention."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                ours = MultiheadAttention(E, H, batch_first=child.batch_first, dtype=torch.float64, **options)
                ours.load_state_dict(child.state_dict(), strict=False)
                setattr(module, name, ours)
    return model


def encoder(batch_first=True, nested=True, **options):
    layer = nn.TransformerEncoderLayer(E, H, 24, 0.0, batch_first=batch_first, dtype=torch.float64, **options)
    for x in layer.parameters():
        nn.init.normal_(x, std=0.3)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)


def inputs(batch_first=True):
    x = torch.randn(B, L, E, dtype=torch.float64)
    padding = torch.arange(L) >= torch.tensor([[L], [4], [3]])
    return x if batch_first else x.transpose(0, 1), padding


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("masked", ["", "padding", "causal"])
@pytest.mark.parametrize("map_name", MAPS)
def test_encoder_in_evaluation_is_what_was_trained(map_name, masked, norm_first, batch_first):
    """The shortcut of torch's layers computes softmax, whatever stands there; it must not be taken."""
    ours = replaced(encoder(batch_first, norm_first=norm_first), map=MAPS[map_name]())
    x, padding = inputs(batch_first)
    how = {
        "": {},
        "padding": {"src_key_padding_mask": padding},
        "causal": {"mask": nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64), "is_causal": True},
    }[masked]
    trained = ours.train()(x, **how)
    ours.eval()
    for evaluated in (ours(x, **how), torch.no_grad()(ours)(x, **how), torch.inference_mode()(ours)(x, **how)):
        seen = ~padding if masked == "padding" else torch.ones_like(padding)
        seen = seen if batch_first else seen.T  # what torch makes of padding in evaluation is zero
        torch.testing.assert_close(evaluated[seen], trained[seen])
    assert ours.layers[0].self_attn._qkv_same_embed_dim == (map_name == "softmax")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
def test_encoder_with_softmax_is_torchs(training):
    theirs = encoder().train(training)
    ours = replaced(theirs).train(training)
    x, padding = inputs()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours(x, src_key_padding_mask=padding), theirs(x, src_key_padding_mask=padding))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("training", [True, False])
def test_a_whole_transformer(training):
    theirs = nn.Transformer(E, H, 2, 2, 24, 0.0, dtype=torch.float64).train(training)  # batch_first is False
    ours = replaced(theirs, map=regard.softmax).train(training)
    x, _ = inputs(batch_first=False)
    causal = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    how = {"tgt_mask": causal, "tgt_is_causal": True}
    torch.testing.assert_close(ours(x, x.flip(0), **how), theirs(x, x.flip(0), **how))
    sparse = replaced(theirs, map=regard.sparsemax)
    y = sparse.train()(x, x.flip(0), **how)
    torch.testing.assert_close(torch.no_grad()(sparse.eval())(x, x.flip(0), **how), y)
    assert (y - theirs(x, x.flip(0), **how)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, True),
        ({"affinity": regard.Dot(1.0)}, False),
        ({"affinity": regard.GaussianW2()}, False),
        ({"map": regard.sparsemax}, False),
        ({"kdim": 5}, False),
    ],
)
def test_torchs_layers_read_the_weights_only_for_what_they_compute(options, same):
    layer = MultiheadAttention(E, H, **options)
    assert layer._qkv_same_embed_dim is same
    layer.map = regard.sparsemax
    assert not layer._qkv_same_embed_dim


# Nested tensors


def nests(lengths, layout, requires_grad=False):
    rows = [torch.randn(n, E, dtype=torch.float64) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=layout, requires_grad=requires_grad)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("average", [True, False])
def test_nested_tensors_equal_one_sequence_at_a_time(layout, options, average):
    layer = MultiheadAttention(E, H, batch_first=True, dtype=torch.float64, map=regard.sparsemax, **options)
    query, key = nests([4, 1, 6], layout), nests([3, 5, 2], layout)
    for given in ((query, key, key), (query, query, query)):
        for how in ({}, {"is_causal": True}):
            out, weights = layer(*given, average_attn_weights=average, **how)
            assert out.is_nested
            assert out.layout == layout
            for i, rows in enumerate(zip(*(x.unbind() for x in (out, *given)), strict=True)):
                expected, p = layer(*rows[1:], average_attn_weights=average, **how)
                torch.testing.assert_close(rows[0], expected)
                extra = p.shape[-1] - len(rows[2])
                shown = weights[i][..., : p.shape[-2], :]
                kept = [shown[..., : len(rows[2])], shown[..., shown.shape[-1] - extra :]]
                torch.testing.assert_close(torch.cat(kept, -1), p)
                assert (weights[i][..., p.shape[-2] :, :] == 0).all()
    assert layer(query, key, key, need_weights=False)[1] is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_have_gradients_and_residuals():
    layer = MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    x = nests([4, 1, 6], torch.jagged, requires_grad=True)
    y = x + layer(x, x, x)[0]
    y.values().square().sum().backward()
    rows = [row.detach().requires_grad_() for row in x.unbind()]
    sum((row + layer(row, row, row)[0]).square().sum() for row in rows).backward()
    for got, row in zip(x.grad.unbind(), rows, strict=True):
        torch.testing.assert_close(got, row.grad)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_that_cannot_be_taken():
    x, other = nests([4, 2], torch.jagged), nests([3, 2], torch.jagged)
    dense = torch.randn(2, 4, E, dtype=torch.float64)
    layer = MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^key: got 3 axes, not nested, expected three axes, and all"):
        layer(x, dense, dense)
    with pytest.raises(ValueError, match=r"^attn_mask, key_padding_mask: got a mask beside nested tensors"):
        layer(x, x, x, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^query, key, value: .* a value for each key"):
        layer(x, x, other)
    with pytest.raises(ValueError, match=r"^query: got a nested tensor, expected batch_first=True"):
        MultiheadAttention(E, H, dtype=torch.float64)(x, x, x)
