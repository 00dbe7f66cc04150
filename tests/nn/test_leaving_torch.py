"""Every module under torch.compile, torch.export, ONNX, safetensors and autocast."""

import importlib
import itertools
import logging
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
        self.attention = MultiheadAttention(E, H, map=next(maps))
        self.encoder = TransformerEncoderLayer(E, H, 24, 0.0, map=next(maps))
        self.decoder = TransformerDecoderLayer(E, H, 24, 0.0, norm_first=True, map=next(maps))
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
        model = TransformerEncoderLayer(E, H, 24, 0.0, map=MAPS["sinkhorn"]()).double()
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


@pytest.mark.parametrize("names", [("softmax",), ("sparsemax", "learned", "entmax15")], ids=str)
def test_export_for_any_batch(names):
    model = Everything(*names).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, inputs(), dynamic_shapes=({0: batch}, {0: batch}))
    other = inputs(7)
    torch.testing.assert_close(program.module()(*other), model(*other))


@pytest.mark.filterwarnings("ignore")  # what torch's exporter and onnxscript do inside
@pytest.mark.parametrize("names", [("sparsemax", "softmax", "entmax15")], ids=str)
def test_onnx_for_any_batch(names, tmp_path):
    onnxruntime = importlib.import_module("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    model = Everything(*names).eval()
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(model, inputs(), dynamo=True, dynamic_shapes=({0: batch}, {0: batch}), verbose=False)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for size in (3, 7):
        x, padding = inputs(size)
        given = [argument.name for argument in session.get_inputs()]
        out = session.run(None, dict(zip(given, (x.numpy(), padding.numpy()), strict=True)))
        for got, expected in zip(out, model(x, padding), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("n", [1, 2, 17, 1000])
def test_the_sorted_form_is_the_same_map(alpha, n):
    from regard.maps._exported import entmax_sorted

    s = torch.randn(20, n) * torch.logspace(-3, 3, 20)[:, None]
    s[s > s.mean(-1, keepdim=True) + 1e-3] = -torch.inf
    s[0] = -torch.inf
    s[1] = 5.0  # ties
    torch.testing.assert_close(entmax_sorted(s, alpha, -1), regard.entmax(s, alpha), rtol=0, atol=1e-6)
    torch.testing.assert_close(entmax_sorted(s.mT, alpha, -2), regard.entmax(s.mT, alpha, dim=-2), rtol=0, atol=1e-6)


def test_the_sorted_form_refuses_other_alphas():
    from regard.maps._exported import entmax_sorted

    for alpha in (1.3, torch.tensor(1.5)):
        with pytest.raises(NotImplementedError, match=r"^alpha: got .* expected 1, 1.5 or 2 in an ONNX export"):
            entmax_sorted(torch.zeros(3), alpha, -1)


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
        model = TransformerEncoderLayer(E, H, 24, 0.0, affinity=GaussianW2())
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
