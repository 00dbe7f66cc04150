"""What leaves torch by torch.export or ONNX gives the same numbers, also for other batches and lengths."""

import importlib
import logging
import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

import regard
from regard.maps.entmax.export import entmax_exported
from regard.nn import (
    AttentionPool,
    ContinuousAttentionPool,
    Entmax,
    MultiheadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)

pytestmark = pytest.mark.once

E, H = 16, 4
MAPS = {
    "softmax": lambda: regard.softmax,
    "sparsemax": lambda: regard.sparsemax,
    "entmax15": lambda: partial(regard.entmax, alpha=1.5),
    "entmax13": lambda: partial(regard.entmax, alpha=1.3),
    "learned": lambda: Entmax(H),
}
OTHERS = [(1, 1), (5, 7), (2, 230)]  # batch and length; the graph is made with (3, 196)
DIMS = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}


class Everything(nn.Module):
    """`attend` and each module once: with and without weights, causal, guided, pooled, with rows without keys."""

    def __init__(self, name):
        super().__init__()
        self.map = MAPS[name]()
        self.attention = MultiheadAttention(E, H, batch_first=True, map=MAPS[name]())
        self.encoder = TransformerEncoderLayer(E, H, 24, 0.0, batch_first=True, map=MAPS[name]())
        self.decoder = TransformerDecoderLayer(E, H, 24, 0.0, batch_first=True, norm_first=True, map=MAPS[name]())
        self.pool = AttentionPool(E, glimpses=H, map=MAPS[name]())
        for parameter, x in self.named_parameters():
            if parameter.endswith(("in_proj_weight", "in_proj_bias")):
                nn.init.normal_(x, std=0.5)
            if parameter.endswith("free"):
                nn.init.uniform_(x, -2.0, 0.3)  # alphas from 1.1 to 1.9, another for each head

    def forward(self, x, padding):
        q = x.unflatten(-1, (H, -1)).transpose(1, 2)
        plain = regard.attend(q, q, q, map=self.map)
        causal = regard.attend(q, q, q, map=self.map, mask=~padding[:, None, None, :], causal=True)
        y, weights = self.attention(x, x, x, key_padding_mask=padding)
        y = self.encoder(y, src_key_padding_mask=padding)
        z = self.decoder(x, y, tgt_is_causal=True, tgt_key_padding_mask=padding, memory_key_padding_mask=padding)
        context, glimpses = self.pool(z, ~padding)
        return plain, causal, weights, y, z, context, glimpses


def inputs(batch=3, length=196):
    padding = torch.rand(batch, length) < 0.4
    padding[0] = True  # nothing left
    return torch.randn(batch, length, E), padding


def same(got, given, model):
    """The same numbers as the module's, and zeros where a row has no key left."""
    torch.testing.assert_close(tuple(got), model(*given), rtol=1e-5, atol=1e-5)
    _, causal, weights, *_, glimpses = got
    for x in (causal, weights, glimpses):
        assert bool((x[0] == 0).all())


def exported(model):
    return torch.export.export(model, inputs(), dynamic_shapes=(DIMS, DIMS))


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "learned"])
def test_export_for_any_batch_and_length(name):
    model = Everything(name).eval()
    program = exported(model)
    for size in OTHERS:
        same(program.module()(*(given := inputs(*size))), given, model)
    ours = {str(node.target) for node in program.graph.nodes if "regard" in str(node.target)}
    assert ours == ({"regard.entmax.default"} if name == "learned" else set())


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_an_exported_program_learns_as_the_module_does(name):
    model = Everything(name).eval()
    program, given, gradients = exported(model).module(), inputs(2, 9), []
    for f in (model, program):
        x = given[0].clone().requires_grad_()
        sum((y * torch.arange(y.shape[-1])).sum() for y in f(x, given[1])).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


FRESH = """
import sys, torch
{first}
program = torch.export.load({path!r}).module()
given, want = torch.load({inputs!r}, weights_only=True)
for got, expected in zip(program(*given), want, strict=True):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
print("the same", "regard" in sys.modules)
"""


def save(name, folder):
    """A program, and what its module gives for a batch of another size."""
    model, given = Everything(name).eval(), inputs(2, 11)
    torch.export.save(exported(model), folder / "model.pt2")
    torch.save((given, tuple(y.detach() for y in model(*given))), folder / "inputs.pt")


def in_a_fresh_process(folder, first):
    """How a process ends that loads the program and runs it."""
    code = FRESH.format(first=first, path=str(folder / "model.pt2"), inputs=str(folder / "inputs.pt"))
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)


def test_a_saved_program_runs_without_regard(tmp_path):
    save("sparsemax", tmp_path)
    assert in_a_fresh_process(tmp_path, "").stdout == "the same False\n"


def test_a_saved_program_with_learned_alphas_needs_regard(tmp_path):
    save("learned", tmp_path)
    assert in_a_fresh_process(tmp_path, "import regard.nn").stdout == "the same True\n"
    assert in_a_fresh_process(tmp_path, "").returncode != 0


@pytest.mark.filterwarnings("ignore")  # what torch's exporter and onnxscript do inside
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_onnx_for_any_batch_and_length(name, tmp_path):
    model = Everything(name).eval()
    run = in_onnx_runtime(model, inputs(), (DIMS, DIMS), tmp_path)
    for size in OTHERS:
        same(run(*(given := inputs(*size))), given, model)


class Causal(nn.Module):
    """One attention, causal and with padding: other alphas make a graph of many steps, so one has to do."""

    def __init__(self, name):
        super().__init__()
        self.whole = Everything(name)

    def forward(self, x, padding):
        return self.whole.attention(x, x, x, key_padding_mask=padding, is_causal=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "by"), [("entmax13", "export"), ("entmax13", "onnx"), ("learned", "onnx")])
def test_any_alpha(name, by, tmp_path):
    model = Causal(name).eval()
    if by == "onnx":
        run = in_onnx_runtime(model, inputs(), (DIMS, DIMS), tmp_path)
    else:
        program = exported(model)
        assert not any("regard" in str(node.target) for node in program.graph.nodes)
        run = program.module()
    for size in OTHERS:
        context, weights = run(*(given := inputs(*size)))
        torch.testing.assert_close((context, weights), model(*given), rtol=1e-5, atol=1e-5)
        assert bool((weights[0] == 0).all())


def test_an_alpha_above_two_stays_an_operation_of_regards():
    model = AttentionPool(E, map=partial(regard.entmax, alpha=2.5)).eval()
    program = torch.export.export(model, inputs(), dynamic_shapes=(DIMS, DIMS))
    assert "regard.entmax.default" in {str(node.target) for node in program.graph.nodes}
    for size in OTHERS:
        torch.testing.assert_close(program.module()(*(given := inputs(*size))), model(*given))


class Context(nn.Module):
    """What an export can take of a pool: tensors in, tensors out."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        return self.pool(x).context


@pytest.mark.parametrize("alpha", [1, 2])
def test_a_continuous_pool_for_any_batch(alpha):
    fit = partial(regard.continuous.match_moments, alpha=alpha)
    model = Context(ContinuousAttentionPool(E, (4, 5), fit=fit)).eval()
    # Not run before: what the export has seen must not stay in the module.
    program = torch.export.export(model, (torch.randn(3, 20, E),), dynamic_shapes=({0: DIMS[0]},))
    for batch in (1, 7):
        x = torch.randn(batch, 20, E)
        torch.testing.assert_close(program.module()(x), model(x))


def in_onnx_runtime(model, given, shapes, folder):
    """The model as a function that ONNX Runtime computes."""
    onnxruntime = importlib.import_module("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    program = torch.onnx.export(model, given, dynamo=True, dynamic_shapes=shapes, verbose=False)
    program.save(folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def run(*tensors):
        out = session.run(None, dict(zip(names, (x.numpy() for x in tensors), strict=True)))
        return tuple(torch.from_numpy(x) for x in out)

    return run


def rows(n):
    """Scores of every scale with masked entries, a row of nothing else, ties, and steps that halve towards the top."""
    s = torch.randn(24, n) * torch.logspace(-3, 3, 24)[:, None]
    s[torch.rand_like(s) < 0.3] = -math.inf
    s[0], s[1] = -math.inf, 5.0
    s[2] = -(0.5 ** torch.arange(n))
    s[3] = -1 + 0.97 ** torch.arange(n)
    return s


def test_the_exported_form_takes_another_axis():
    s, alphas = rows(17), torch.linspace(0.05, 1.95, 24)[:, None]
    expected = entmax_exported(s, alphas, -1)
    torch.testing.assert_close(expected, regard.entmax(s, alphas), rtol=0, atol=2e-6)
    torch.testing.assert_close(entmax_exported(s.mT, alphas.mT, -2), expected.mT)


def test_the_exported_form_has_the_same_gradients():
    s, alphas = rows(9).double(), torch.linspace(0.05, 1.95, 24).double()[:, None]
    gradients = []
    for f in (regard.entmax, partial(entmax_exported, dim=-1)):
        given = s.clone().requires_grad_(), alphas.clone().requires_grad_()
        gradients.append(torch.autograd.grad((f(*given) * torch.arange(9)).sum(), given))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_exported_form_never_gives_what_it_has_not_solved():
    p = entmax_exported(torch.randn(3, 5), torch.tensor([[1.2], [2.5], [2.0]]), -1)
    assert p.isnan().all(-1).tolist() == [False, True, False]
    with pytest.raises(NotImplementedError, match=r"^alpha: got 2.5, expected at most 2 in an ONNX export"):
        entmax_exported(torch.zeros(3), 2.5, -1)
