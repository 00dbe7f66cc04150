"""The blocks against the paper's equations, with the output norm switched on: at zero it would hide any affinity."""

import importlib
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import nonlocal_ as reference
from torch import nn

import regard
from regard.nn import NonLocal1d, NonLocal2d, NonLocal3d

KINDS = ["gaussian", "embedded_gaussian", "dot_product", "concatenation"]
MAPS = {
    1: (NonLocal1d, (9,), (2,)),
    2: (NonLocal2d, (5, 4), (2, 2)),
    3: (NonLocal3d, (2, 4, 3), (1, 2, 2)),
}


def switched_on(block):
    """Every parameter random, the zero ones too."""
    for p in block.parameters():
        nn.init.normal_(p, std=0.5)
    return block


def layers(block):
    return {n: dict(m.named_parameters()) for n, m in block.named_children() if isinstance(m, nn.Linear)}


def expected(block, x, kind, **how):
    w = getattr(block, "w", None)
    z = torch.stack([reference.response(example, kind, layers(block), w=w, **how) for example in x])
    return x + (z if block.norm is None else reference.batch_norm(z, block.norm.weight, block.norm.bias))


def published(kind):
    """The scale of the authors' code; None is 1/sqrt(width)."""
    return None if kind == "embedded_gaussian" else 1.0


def effective(p):
    """How many positions a query looks at (7.2.1)."""
    return torch.special.entr(p).sum(-1).exp()


HOWS = [{}, {"scale": 1.0}, {"scale": None}, {"pool": "after"}, {"pool": "before"}, {"norm": None}]


@pytest.mark.parametrize("dimensions", MAPS)
@pytest.mark.parametrize(
    ("kind", "how"), [(k, h) for k in KINDS for h in HOWS if not (k == "concatenation" and "scale" in h)]
)
def test_equals_the_equations_of_the_paper(kind, dimensions, how):
    make, space, cell = MAPS[dimensions]
    options = dict(how, subsample=cell) if "pool" in how else how
    block = switched_on(make(6, kind, **options).double())
    x = torch.randn(2, 6, *space, dtype=torch.float64, requires_grad=True)
    told = {"scale": published(kind)} | {k: v for k, v in how.items() if k != "norm"}
    told |= {"cell": cell} if "pool" in how else {}
    want, got = expected(block, x, kind, **told), block(x)
    assert not torch.allclose(got, x, atol=0.1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    leaves = [x, *block.parameters()]
    direction = torch.randn_like(got)
    grads = [torch.autograd.grad((y * direction).sum(), leaves) for y in (got, want)]
    for g, e in zip(*grads, strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=1e-9)


@given(
    st.sampled_from(KINDS), st.integers(1, 7), st.integers(1, 7), st.integers(1, 5), st.integers(1, 3), st.booleans()
)
@settings(max_examples=30)
def test_any_size(kind, height, width, channels, cell, before):
    if cell > min(height, width):
        return
    pool = "before" if before else "after"
    block = switched_on(NonLocal2d(channels, kind, subsample=cell, pool=pool, norm=None).double())
    x = torch.randn(2, channels, height, width, dtype=torch.float64)
    want = expected(block, x, kind, cell=(cell, cell), pool=pool, scale=published(kind))
    torch.testing.assert_close(block(x), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["batch", None, partial(nn.GroupNorm, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_starts_as_the_identity_and_learns(kind, norm):
    block = NonLocal2d(4, kind, norm=norm)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x)
    optimizer = torch.optim.Adam(block.parameters(), 0.1)  # whose steps do not shrink with a small start
    for _ in range(3):
        optimizer.zero_grad()
        (block(x) - x.flip(-1)).square().mean().backward()
        optimizer.step()
    assert not torch.equal(block(x), x)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())
    assert block.g.weight.grad.abs().sum() > 0


def test_starts_by_looking_everywhere():
    """As published: the authors' standard deviation, no biases, and their scale; each of the two matters."""
    x = torch.randn(2, 512, 14, 14)
    block = NonLocal2d(512)
    assert effective(block.weights(x)).min() > 195
    for layer in (block.theta, block.phi, block.g, block.out):
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.02)
        assert (layer.bias == 0).all()
    assert 100 < effective(NonLocal2d(512, scale=1.0).weights(x)).mean() < 180
    for layer in (block.theta, block.phi):
        layer.reset_parameters()
    block.scale = 1.0
    assert effective(block.weights(x)).mean() < 6


def test_a_wide_start_passes_less_gradient_to_the_scores():
    x = torch.randn(2, 512, 14, 14)
    sizes = []
    for std, scale in ((0.01, None), (0.05, 1.0)):
        block = NonLocal2d(512, std=std, scale=scale, norm=None, zero_init=False)
        p = block.weights(x)
        # The Jacobian of softmax, diag(p) - p p', by its trace: what a score can do to the weights.
        sizes.append((p * (1 - p)).sum(-1).mean().item())
    assert sizes[0] > 0.99
    assert sizes[1] < 0.3


def test_without_zero_start_it_is_no_identity():
    x = torch.randn(2, 4, 5, 5)
    assert not torch.allclose(NonLocal2d(4, zero_init=False)(x), x, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_forward_pass(kind):
    block = switched_on(NonLocal2d(4, kind, norm=None, subsample=2))
    x = torch.randn(2, 4, 6, 4)
    v = torch.nn.functional.max_pool2d(block.g(x.movedim(1, -1)).movedim(-1, 1), 2).flatten(2).mT
    y = block.weights(x) @ v
    assert block.weights(x).shape == (2, 24, 6)
    torch.testing.assert_close(x + block.out(y).mT.reshape(x.shape), block(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("gaussian", "fused"),
        ("embedded_gaussian", "fused"),
        ("dot_product", "associative"),
        ("concatenation", "sorted"),
    ],
)
def test_the_cheap_algorithm_is_taken(kind, algorithm):
    x = torch.zeros(1, 8, 32, 32)
    assert NonLocal2d(8, kind).explain(x).algorithm == algorithm
    assert NonLocal2d(8, kind, subsample=2).explain(x).algorithm == algorithm


@pytest.mark.parametrize("map_", [regard.sparsemax, regard.entmax, partial(regard.entmax, alpha=1.3)])
def test_any_map(map_):
    block = switched_on(NonLocal2d(4, "embedded_gaussian", map_, norm=None))
    p = block.weights(torch.randn(2, 4, 4, 4))
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 16))
    assert (p == 0).any()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_layout_does_not_matter(kind, layout):
    block = switched_on(NonLocal2d(4, kind, subsample=2)).eval()
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(block(x.to(memory_format=layout)), block(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.once
def test_compile_and_export(kind):
    block = switched_on(NonLocal2d(4, kind, subsample=2)).eval()
    x = torch.randn(2, 4, 6, 6)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x))
    torch.testing.assert_close(torch.export.export(block, (x,)).module()(x), block(x))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_and_bfloat16(kind):
    block = switched_on(NonLocal2d(4, kind)).eval()
    x = torch.randn(2, 4, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = block(x.requires_grad_())
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in block.parameters())
    close = partial(torch.testing.assert_close, rtol=0.1, atol=0.15)
    close(y.float(), block(x))
    half = NonLocal2d(4, kind).eval()
    half.load_state_dict(block.state_dict())
    assert half.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    close(half(x.bfloat16()).float(), block(x))


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_through_safetensors(kind, tmp_path):
    st_torch = importlib.import_module("safetensors.torch")
    block, other = switched_on(NonLocal2d(4, kind)), NonLocal2d(4, kind)
    st_torch.save_file(block.state_dict(), tmp_path / "block.safetensors")
    other.load_state_dict(st_torch.load_file(tmp_path / "block.safetensors"))
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(other(x), block(x))


def test_repr_says_what_it_is():
    text = repr(NonLocal2d(8, "dot_product", scale=None, subsample=2))
    for word in ("NonLocal2d", "8, affinity=dot_product, map=mean, inner=4, scale=None, subsample=(2, 2), pool=after"):
        assert word in text
    assert "subsample" not in repr(NonLocal1d(8))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"channels": 0}, ValueError, "^channels: got 0"),
        ({"channels": 4, "affinity": "cosine"}, ValueError, "^affinity: got 'cosine', expected one of 'gaussian'"),
        ({"channels": 4, "pool": "middle"}, ValueError, "^pool: got 'middle'"),
        ({"channels": 4, "inner": 0}, ValueError, "^inner: got 0"),
        ({"channels": 4, "subsample": (2, 2, 2)}, ValueError, "^subsample: got .* expected a number, or 2"),
        ({"channels": 4, "subsample": 0}, ValueError, "^subsample: got 0"),
        ({"channels": 4, "scale": "big"}, TypeError, "^scale: got 'big'"),
        ({"channels": 4, "affinity": "concatenation", "scale": None}, ValueError, "^scale: got None"),
        ({"channels": 4, "std": 0.0}, ValueError, "^std: got 0.0"),
        ({"channels": 4, "norm": lambda c: nn.Identity()}, ValueError, "^norm: got Identity"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        NonLocal2d(**arguments)


def test_bad_inputs_are_named():
    block = NonLocal2d(4, subsample=4)
    for shape in ((4, 8, 8), (2, 5, 8, 8), (2, 4, 8)):
        with pytest.raises(ValueError, match=r"^x: got shape .* expected \(batch, 4, y, x\)"):
            block(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"^x: got a map of \(8, 3\)"):
        block(torch.zeros(2, 4, 8, 3))
    with pytest.raises(TypeError, match=r"^x: got torch.int64"):
        block(torch.zeros(2, 4, 8, 8, dtype=torch.long))


@pytest.mark.parametrize("kind", ["gaussian", "embedded_gaussian", "dot_product"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.once
def test_onnx(kind, tmp_path):
    onnxruntime = importlib.import_module("onnxruntime")
    block = switched_on(NonLocal2d(4, kind, subsample=2)).eval()
    x = torch.randn(2, 4, 6, 6)
    torch.onnx.export(block, (x,), tmp_path / "block.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "block.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), block(x), rtol=1e-4, atol=1e-5)
