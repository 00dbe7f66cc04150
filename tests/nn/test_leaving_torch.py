"""Every module under torch.compile, safetensors and autocast; test_export.py has torch.export and ONNX."""

import importlib
import itertools
from functools import partial

import pytest
import torch
from torch import nn

import regard
from regard import GaussianW2, Sinkhorn
from regard.nn import AttentionPool, Entmax, MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer

pytestmark = pytest.mark.once

E, H, L = 16, 4, 6
MAPS = {
    "softmax": lambda: regard.softmax,
    "sparsemax": lambda: regard.sparsemax,
    "entmax15": lambda: partial(regard.entmax, alpha=1.5),
    "learned": lambda: Entmax(H),
    "sinkhorn": lambda: Sinkhorn(iterations=5),
}


class Everything(nn.Module):
    """Each module once, with these maps in turn: with and without weights, causal, guided, pooled."""

    def __init__(self, *names):
        super().__init__()
        maps = (MAPS[name]() for name in itertools.cycle(names))
        self.attention = MultiheadAttention(E, H, batch_first=True, map=next(maps))
        self.encoder = TransformerEncoderLayer(E, H, 24, 0.0, batch_first=True, map=next(maps))
        self.decoder = TransformerDecoderLayer(E, H, 24, 0.0, batch_first=True, norm_first=True, map=next(maps))
        self.pool = AttentionPool(E, glimpses=H, out=8, map=next(maps))
        for name, x in self.named_parameters():
            if name.endswith(("in_proj_weight", "in_proj_bias")):
                nn.init.normal_(x, std=0.5)

    def forward(self, x, padding):
        y, weights = self.attention(x, x, x, key_padding_mask=padding)
        y = self.encoder(y, src_key_padding_mask=padding)
        z = self.decoder(x, y, tgt_is_causal=True, tgt_key_padding_mask=padding, memory_key_padding_mask=padding)
        context, glimpses = self.pool(z, ~padding)
        return y, z, weights, context, glimpses


def inputs(batch=3):
    x = torch.randn(batch, L, E)
    padding = torch.rand(batch, L) < 0.4
    padding[0] = True  # nothing left
    return x, padding


@pytest.mark.parametrize("names", [("softmax",), ("sparsemax", "learned", "entmax15"), ("sinkhorn",)], ids=str)
def test_compile(names):
    torch.compiler.reset()
    x, padding = inputs()
    if names == ("sinkhorn",):
        model = TransformerEncoderLayer(E, H, 24, 0.0, batch_first=True, map=MAPS["sinkhorn"]()).double()
        given = (x.double(), None, padding)
    else:
        model = Everything(*names).double()
        given = (x.double(), padding)
    results = []
    for f in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        out = f(*given)
        out = out if isinstance(out, tuple) else (out,)
        results.append((*out, *torch.autograd.grad(sum(y.square().sum() for y in out), tuple(model.parameters()))))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", MAPS)
def test_safetensors(name, tmp_path):
    safetensors = importlib.import_module("safetensors.torch")
    model, other = Everything(name), Everything(name)
    with torch.no_grad():
        for x in model.parameters():
            x.normal_()
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    given = inputs()
    torch.testing.assert_close(other(*given), model(*given), rtol=0, atol=0)


@pytest.mark.parametrize("name", [*MAPS, "w2"])
def test_autocast(name):
    if name == "w2":
        model = TransformerEncoderLayer(E, H, 24, 0.0, batch_first=True, affinity=GaussianW2())
        run = lambda: model(inputs()[0])  # noqa: E731
    else:
        model = Everything(name)
        run = lambda: model(*inputs())[3]  # noqa: E731
    torch.manual_seed(0)
    exact = run()
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run()
    assert (y.float() - exact).norm() < 0.1 * exact.norm()
    y.float().square().sum().backward()
    assert all(x.grad.isfinite().all() for x in model.parameters())


@pytest.mark.parametrize("name", MAPS)
def test_half_precision_module(name):
    model = Everything(name)
    x, padding = inputs()
    exact = model(x, padding)[3]
    half = model.bfloat16()(x.bfloat16(), padding)[3]
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).norm() < 0.1 * exact.norm()
