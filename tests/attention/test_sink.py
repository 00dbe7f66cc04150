"""Attention sinks and soft caps against the obvious program: one more score, which the values never see."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from attention.cases import AFFINITIES, MAPS, make_affinity, make_inputs, parameters
from hypothesis import given
from hypothesis import strategies as st
from reference import attend as reference
from reference import maps as reference_maps
from reference import structured
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import Bilinear, Dot, SoftCap, attend, attention_weights, explain_attend, native
from regard.nn import Entmax, MultiheadAttention

SIMPLEX = {name: maps for name, maps in MAPS.items() if name != "mean"}
SHAPES = [(), (1,), (6, 1), (2, 1, 1), (2, 6, 1)]


def make_sink(shape, dtype=torch.float64):
    return (0.8 + 0.3 * torch.randn(shape, dtype=dtype)).requires_grad_()  # high enough to matter in sparse maps


def check_gradients(got, expected, leaves, tolerance=1e-9):
    direction = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, leaves, direction) for x in (got, expected)), strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("map_name", SIMPLEX)
@pytest.mark.parametrize("blocks", [False, True])
def test_a_sink_of_any_shape_equals_the_obvious_program(shape, map_name, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = SIMPLEX[map_name]
    q, k, v = (x.requires_grad_() for x in make_inputs())
    sink = make_sink(shape)
    got, expected = attend(q, k, v, map=ours, sink=sink), reference.attend(q, k, v, Dot(), obvious, sink=sink)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    check_gradients(got, expected, (q, k, v, sink))
    p = attention_weights(q, k, map=ours, sink=sink)
    assert p.shape == (2, 6, 9)
    torch.testing.assert_close(p @ v, expected)
    assert (p.sum(-1) < 1).any()


@pytest.mark.parametrize("kind", ["keys", "pairs", "causal", "upper-left", "bias", "more queries"])
@pytest.mark.parametrize("map_name", SIMPLEX)
@pytest.mark.parametrize("name", [*AFFINITIES, "capped"])
@pytest.mark.parametrize("blocks", [False, True])
def test_every_pair_with_a_sink(name, map_name, kind, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = SIMPLEX[map_name]
    queries = 11 if kind == "more queries" else 6
    q, k, v = (x.requires_grad_() for x in make_inputs(lq=queries))
    affinity = SoftCap(make_affinity("bilinear", 4), 2.0) if name == "capped" else make_affinity(name, 4)
    leaves = [*parameters(affinity), *(parameters(affinity.of) if name == "capped" else [])]
    for x in leaves:
        x.requires_grad_()
    sink, bias = make_sink((2, 1, 1)), torch.randn(6, 9, dtype=torch.float64).requires_grad_()
    keys = (torch.rand(2, 1, 9) < 0.7).index_fill(0, torch.tensor([1]), False)
    pairs = torch.rand(2, 6, 9) < 0.7
    lower, upper = reference.causal_mask(queries, 9), torch.ones(queries, 9, dtype=torch.bool).tril()
    how, expect = {
        "keys": ({"mask": keys}, {"mask": keys}),
        "pairs": ({"mask": pairs}, {"mask": pairs}),
        "causal": ({"causal": True, "mask": keys}, {"mask": keys & lower}),
        "upper-left": ({"causal": "upper-left"}, {"mask": upper}),
        "bias": ({"bias": bias, "mask": pairs}, {"bias": bias, "mask": pairs}),
        "more queries": ({"causal": True}, {"mask": lower}),  # the first of them see nothing but the sink
    }[kind]
    got = attend(q, k, v, affinity, ours, sink=sink, **how)
    expected = reference.attend(q, k, v, affinity, obvious, sink=sink, **expect)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    check_gradients(got, expected, [q, k, v, sink, *leaves, *([bias] if kind == "bias" else [])])
    torch.testing.assert_close(attention_weights(q, k, affinity, ours, sink=sink, **how) @ v, expected)


@pytest.mark.parametrize(
    ("ours", "obvious"),
    [
        (regard.Normmax(2.0), partial(reference_maps.normmax, alpha=2.0)),
        (regard.BudgetSparsemax(2.0), partial(reference_maps.budget_sparsemax, budget=2.0)),
        (regard.Inverse(), lambda s: 1 / (1 - s) / (1 / (1 - s)).sum(-1, keepdim=True)),
    ],
    ids=["normmax", "budget_sparsemax", "inverse"],
)
def test_other_maps_with_a_fixed_total(ours, obvious):
    q, k, v = make_inputs()
    affinity = regard.EmpiricalW2() if isinstance(ours, regard.Inverse) else Dot()
    sink = -torch.rand(2, 1, 1, dtype=torch.float64)
    s = affinity.scores(q, k)
    expected = obvious(torch.cat([s, sink.expand(2, 6, 1)], -1))[..., :9]
    torch.testing.assert_close(attention_weights(q, k, affinity, ours, sink=sink), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(attend(q, k, v, affinity, ours, sink=sink), expected @ v, rtol=0, atol=1e-9)
    q, sink = q.requires_grad_(), sink.requires_grad_()
    assert gradcheck(lambda q, b: attend(q, k, v, affinity, ours, sink=b), (q, sink))


@pytest.mark.parametrize("masked", [False, True])
def test_tvmax_solves_its_problem_with_one_more_corner(masked):
    """No feasible point near it, and none that a solver finds, is better."""
    rng = np.random.default_rng(0)
    s, sink, gamma = rng.normal(size=(3, 4)), 0.9, 0.15
    mask = np.ones((3, 4), bool) if not masked else rng.random((3, 4)) < 0.7
    q, k = torch.ones(1, 1, dtype=torch.float64), torch.from_numpy(s).reshape(12, 1)
    given_mask = torch.from_numpy(mask).reshape(1, 12)
    p = attention_weights(q, k, Dot(1.0), regard.TVmax(gamma, (3, 4)), given_mask, sink=sink).numpy().reshape(3, 4)

    def objective(p):
        return structured.objective(p, s, gamma, mask) + ((1 - p.sum()) - sink) ** 2 / 2

    assert (p >= 0).all()
    assert (p[~mask] == 0).all()
    assert 0 < p.sum() < 1
    best = objective(p)
    for _ in range(500):
        step = rng.normal(size=p.shape) * mask * 10 ** rng.uniform(-4, -1)
        other = np.maximum(p + step, 0)
        other = other if other.sum() <= 1 else other / other.sum()
        assert objective(other) >= best - 1e-9
    sunk = attention_weights(q, k, Dot(1.0), regard.TVmax(gamma, (3, 4)), given_mask, sink=-50.0).numpy()
    np.testing.assert_allclose(sunk.reshape(3, 4), structured.tvmax(s, gamma, mask), atol=1e-6)


def test_gradcheck_in_the_sink_and_twice():
    q, k, v = (x.requires_grad_() for x in make_inputs(lq=3, lk=4, d=2, dv=2))
    sink = make_sink((2, 1, 1))
    for map_ in (regard.softmax, regard.entmax, regard.Entmax(1.3), regard.TVmax(0.1, (2, 2))):
        assert gradcheck(lambda *x, m=map_: attend(*x[:3], map=m, sink=x[3]), (q, k, v, sink))
    assert gradgradcheck(lambda *x: attend(*x[:3], map=regard.Entmax(1.3), sink=x[3]), (q, k, v, sink))


@pytest.mark.parametrize("affinity", [regard.GaussianW2(0.7), regard.EmpiricalW2(torch.full((2, 1, 1), 0.7))])
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax], ids=["softmax", "sparsemax"])
def test_a_constant_that_the_factors_omit_counts_beside_a_sink(affinity, offset, map_):
    q, k, v = (x.abs() + offset for x in make_inputs(dv=4))
    tau = affinity.tau.double() if isinstance(affinity.tau, torch.Tensor) else affinity.tau
    affinity = type(affinity)(tau)
    sink = torch.tensor([-2.0, 1.0], dtype=torch.float64).view(2, 1, 1)
    s = torch.cat([affinity.scores(q, k), sink.expand(2, 6, 1)], -1)
    expected = map_(s)[..., :9] @ v
    torch.testing.assert_close(attend(q, k, v, affinity, map_, sink=sink), expected, rtol=1e-9, atol=1e-9)
    first, second = affinity.factors(q, k)
    torch.testing.assert_close(first @ second.mT + affinity.omitted(q, k), affinity.scores(q, k), rtol=0, atol=1e-8)


@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax, Entmax(4)], ids=["softmax", "sparsemax", "learned"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_per_head_with_grouped_queries(map_, causal):
    q, (k, v) = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 2, 7, 3).unbind(0)
    sink = torch.randn(4, 1, 1)
    copied = [reference.repeated(x, 2) for x in (k, v)]
    expected = attend(q, *copied, map=map_, causal=causal, sink=sink)
    torch.testing.assert_close(attend(q, k, v, map=map_, causal=causal, sink=sink, enable_gqa=True), expected)
    torch.testing.assert_close(
        attention_weights(q, k, map=map_, causal=causal, sink=sink, enable_gqa=True) @ copied[1], expected
    )


@pytest.mark.skipif(native.library() is None, reason="no native kernels here")
def test_the_sparse_kernel_takes_it_as_one_more_key():
    q, k, v = (torch.randn(1, 2, 700, 16).requires_grad_() for _ in range(3))
    sink = torch.tensor([1.0, 2.0]).view(2, 1, 1).requires_grad_()
    plan = explain_attend(q, k, v, map=regard.sparsemax, sink=sink, causal=True)
    assert plan.algorithm == "sparse"
    assert plan.how.endswith(", the sink as one more key")
    got = attend(q, k, v, map=regard.sparsemax, sink=sink, causal=True)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, sink)]
    mask = reference.causal_mask(700, 700)
    expected = reference.attend(*wide[:3], Dot(), reference_maps.sparsemax, mask, sink=wide[3])
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)
    direction = torch.randn_like(got)
    gradients = torch.autograd.grad(got, (q, k, v, sink), direction)
    for g, e in zip(gradients, torch.autograd.grad(expected, wide, direction.double()), strict=True):
        torch.testing.assert_close(g.double(), e, rtol=1e-4, atol=1e-4)


def test_softmax_stays_fused():
    x = torch.zeros(1, 4096, 64)
    assert explain_attend(x, x, x, sink=0.0).algorithm == "fused"
    assert explain_attend(x, x, x, sink=0.0, causal=True).algorithm == "fused blocks"
    assert explain_attend(x, x, x, regard.GaussianW2(), sink=0.0).algorithm == "fused"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax], ids=["softmax", "sparsemax"])
def test_half_precision_and_a_sink_of_more(dtype, map_):
    q, k, v = (torch.randn(2, 9, 16).to(dtype) for _ in range(3))
    sink = torch.tensor(0.123456)
    got = attend(q, k, v, map=map_, sink=sink)
    assert got.dtype == dtype
    exact = attend(q.double(), k.double(), v.double(), map=map_, sink=sink.double())
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 2e-3)
    finer = attend(q.float(), k.float(), v.float(), map=map_, sink=sink)
    assert (got.float() - finer.to(dtype).float()).abs().max() <= (1e-2 if dtype == torch.bfloat16 else 1e-3)


@given(number=st.floats(-5, 5), scale=st.floats(0.1, 3.0), seed=st.integers(0, 1000))
def test_a_higher_sink_takes_more_and_a_low_one_nothing(number, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    for map_ in ("softmax", "sparsemax", "entmax"):
        p, more = (attention_weights(q, k, Dot(scale), map_, sink=b) for b in (number, number + 1))
        assert (more.sum(-1) <= p.sum(-1) + 1e-12).all()
        assert (p.sum(-1) <= 1 + 1e-12).all()
        none = attention_weights(q, k, Dot(scale), map_, sink=-1e4)
        torch.testing.assert_close(none, attention_weights(q, k, Dot(scale), map_))


def test_softmax_with_a_sink_is_the_context_times_a_gate():
    """The form of other programs: sigmoid of the log-sum-exp minus the score of the sink."""
    q, k, v = make_inputs()
    gate = torch.sigmoid(torch.logsumexp(Dot().scores(q, k), -1, keepdim=True) - 0.4)
    torch.testing.assert_close(attend(q, k, v, sink=0.4), gate * attend(q, k, v))


def test_dropout_leaves_the_sink_alone():
    q, k = torch.zeros(1, 2), torch.zeros(40, 2)
    torch.manual_seed(0)
    mean = torch.stack([attend(q, k, torch.ones(40, 1), sink=math.log(40), dropout_p=0.3) for _ in range(400)]).mean()
    assert float(mean) == pytest.approx(0.5, abs=0.02)


def test_a_batch_of_size_zero_and_a_sink_with_the_batch_of_the_values_alone():
    assert attend(torch.zeros(0, 5, 3), torch.zeros(0, 4, 3), torch.zeros(0, 4, 2), sink=0.0).shape == (0, 5, 2)
    q, k, v = torch.randn(5, 4), torch.randn(6, 4), torch.randn(3, 6, 2)
    sink = torch.randn(3, 1, 1)
    each = torch.stack([attend(q, k, v[i], sink=sink[i]) for i in range(3)])
    torch.testing.assert_close(attend(q, k, v, sink=sink), each)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"sink": torch.zeros(5)}, ValueError, r"^sink: got shape \(5,\), expected a shape that broadcasts"),
        ({"sink": torch.zeros(2, 1, 9)}, ValueError, r"^sink: got shape"),
        ({"sink": math.nan}, ValueError, r"^sink: got nan"),
        ({"sink": -math.inf}, ValueError, r"^sink: got -inf"),
        ({"sink": torch.tensor(math.inf)}, ValueError, r"^sink: got an infinity"),
        ({"sink": torch.tensor(1)}, TypeError, r"^sink: got torch.int64"),
        ({"sink": 0.0, "map": "mean"}, ValueError, r"^sink: got one with Mean\(\)"),
        ({"sink": 0.0, "map": "gate"}, ValueError, r"^sink: got one with Gate"),
        ({"sink": 0.0, "map": "sinkhorn"}, ValueError, r"^sink: got one with Sinkhorn"),
    ],
)
def test_complaints(how, error, words):
    q, k, v = make_inputs()
    for function in (attend, explain_attend):
        with pytest.raises(error, match=words):
            function(q, k, v, **how)
    with pytest.raises(error, match=words):
        attention_weights(q, k, **how)


# Soft caps


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
@pytest.mark.parametrize("blocks", [False, True])
def test_a_soft_cap_on_every_affinity(name, map_name, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = MAPS[map_name]
    q, k, v = (x.requires_grad_() for x in make_inputs())
    inner = make_affinity(name, 4)
    for x in parameters(inner):
        x.requires_grad_()
    affinity, mask = SoftCap(inner, 1.5), torch.rand(6, 9) < 0.8
    bias = torch.randn(6, 9, dtype=torch.float64)
    got = attend(q, k, v, affinity, ours, mask, bias=bias)
    expected = reference.attend(q, k, v, affinity, obvious, mask, bias)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    check_gradients(got, expected, [q, k, v, *parameters(inner)])
    assert affinity.scores(q * 100, k * 100).abs().max() <= 1.5


def test_the_words_of_a_soft_cap():
    assert repr(SoftCap(Dot(), 5.0)) == "SoftCap(of=Dot(scale=None), cap=5.0)"
    with pytest.raises(ValueError, match=r"^cap: got 0"):
        SoftCap(Dot(), 0.0)
    with pytest.raises(TypeError, match=r"^of: got ABCMeta, expected an Affinity object"):
        SoftCap(Dot, 1.0)
    q, k, v = make_inputs(d=4)
    weight = torch.full((4, 4), math.nan, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^affinity.of.weight: got NaN"):
        attend(q, k, v, SoftCap(Bilinear(weight), 5.0))


# Modules


@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax], ids=["softmax", "sparsemax"])
def test_a_module_learns_one_sink_per_head(map_):
    layer = MultiheadAttention(16, 4, batch_first=True, map=map_, add_sink=True)
    plain = MultiheadAttention(16, 4, batch_first=True, map=map_)
    plain.load_state_dict({name: x for name, x in layer.state_dict().items() if name != "sink"})
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        layer.sink.copy_(torch.tensor([-1e3, 0.0, 1.0, 2.0]))
    c, p = layer(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(layer(x, x, x, need_weights=False)[0], c, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(p[:, 0], plain(x, x, x, average_attn_weights=False)[1][:, 0])
    assert (p[:, 1:].sum(-1) < 1 - 1e-3).any()
    c.square().sum().backward()
    assert (layer.sink.grad[1:] != 0).all()
    assert "add_sink=True" in repr(layer)
    assert not layer._qkv_same_embed_dim  # torch's fast path knows of no sink


def test_torch_layers_take_no_fast_path_past_a_sink():
    outer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True, dropout=0.0)
    outer.self_attn = MultiheadAttention(16, 4, batch_first=True, add_sink=True)
    x = torch.randn(2, 5, 16)
    slow = outer.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(outer.eval()(x), slow)
