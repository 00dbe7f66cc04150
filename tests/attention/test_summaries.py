"""Summaries of weights that are never all in memory, against those of all weights; rollout; sparse weights."""

import itertools

import pytest
import reference.summaries as obvious
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.attention import query_blocks, summaries
from regard.attention.lazy import LazyWeights

MAPS = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "entmax": regard.Entmax(1.3),
    "learned alpha": regard.Entmax(torch.tensor([1.2, 1.7], dtype=torch.float64).reshape(2, 1, 1)),
    "sinkhorn": regard.Sinkhorn(iterations=20),
    "gate": regard.Gate(),
    "any callable": lambda s, *, mask: torch.softmax(s if mask is None else s.masked_fill(~mask, -1e9), -1),
}
AFFINITIES = {
    "dot": regard.Dot(),
    "additive": regard.Additive(torch.linspace(-1, 1, 4, dtype=torch.float64)),
    "concatenation": regard.Concatenation(*torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)),
    "w2": regard.EmpiricalW2(),
}
EXTRAS = {
    "plain": {},
    "causal": {"causal": True},
    "upper-left": {"causal": "upper-left"},
    "mask": {"mask": torch.arange(9) % 4 != 1},
    "mask of pairs": {"mask": torch.arange(63).reshape(7, 9) % 5 != 0},
    "mask of heads": {"mask": torch.arange(126).reshape(2, 7, 9) % 5 != 0},
    "dead row": {"mask": torch.arange(7)[:, None] != torch.full((1, 9), 2)},
    "bias": {"bias": torch.linspace(-2, 2, 63, dtype=torch.float64).reshape(7, 9)},
    "sink": {"sink": 0.3},
    "sink of heads, causal, masked": {
        "sink": torch.tensor([0.5, -1.0], dtype=torch.float64).reshape(2, 1, 1),
        "causal": True,
        "mask": torch.arange(9) % 4 != 1,
    },
    "causal with a mask and a bias": {
        "causal": True,
        "mask": torch.arange(9) != 0,
        "bias": torch.linspace(-1, 1, 9, dtype=torch.float64),
    },
}


@pytest.fixture(params=[1 << 21, 40, 4], ids=["one block", "rows of a head", "a row at a time"])
def budget(request, monkeypatch):
    """Small blocks, so that a call has many, and is cut along its heads."""
    monkeypatch.setattr(query_blocks, "BUDGET", request.param)
    monkeypatch.setattr(summaries, "BUDGET", request.param)
    return request.param


def inputs(queries=7, keys=9):
    return torch.randn(3, 2, queries, 4, dtype=torch.float64), torch.randn(3, 2, keys, 4, dtype=torch.float64)


def check(summary, p, regions, rows):
    torch.testing.assert_close(summary.entropy, obvious.entropy(p))
    torch.testing.assert_close(summary.effective, obvious.effective(p))
    assert (summary.support == obvious.support(p)).all()
    torch.testing.assert_close(summary.received, obvious.received(p))
    torch.testing.assert_close(summary.regions, obvious.mass(p, regions))
    torch.testing.assert_close(summary.rows, p[..., rows, :])
    largest = obvious.top(p, summary.top_weights.shape[-1])
    torch.testing.assert_close(summary.top_weights, largest)
    found = p.gather(-1, summary.top_places.clamp(min=0))
    torch.testing.assert_close(torch.where(summary.top_places < 0, 0.0, found), largest)
    assert ((summary.top_places < 0) == (largest == 0)).all()


# The marginals of Sinkhorn need every key: it is tried with nothing else. A gate has no total that a sink could share.
PAIRS = [
    (map_, extras)
    for map_ in MAPS
    for extras in EXTRAS
    if (map_ != "sinkhorn" or extras == "plain") and (map_ != "gate" or "sink" not in extras)
]


@pytest.mark.parametrize(("map_", "extras"), PAIRS)
@pytest.mark.parametrize("affinity", ["dot", "additive"])
def test_summaries_are_those_of_the_weights(affinity, map_, extras, budget):
    q, k = inputs()
    how = {"affinity": AFFINITIES[affinity], "map": MAPS[map_], **EXTRAS[extras]}
    regions = torch.rand(2, 1, 3, 9, dtype=torch.float64).round()
    regions = regions[0]
    summary = regard.summarize(q, k, **how, top=3, regions=regions.bool(), rows=[0, -1, 3])
    check(summary, regard.attention_weights(q, k, **how), regions, [0, -1, 3])


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_every_affinity(affinity, budget):
    q, k = inputs()
    summary = regard.summarize(q, k, AFFINITIES[affinity], regard.sparsemax, top=1, regions=torch.ones(1, 9), rows=[2])
    p = regard.attention_weights(q, k, AFFINITIES[affinity], regard.sparsemax)
    check(summary, p, torch.ones(1, 9, dtype=torch.float64), [2])


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([False, True, "upper-left"]),
    st.sampled_from(["softmax", "sparsemax", "entmax"]),
    st.integers(1, 30),
    st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_sizes(queries, keys, causal, map_, budget, seed):
    torch.manual_seed(seed)
    q, k = inputs(queries, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_blocks, "BUDGET", budget)
        summary = regard.summarize(q, k, map=MAPS[map_], causal=causal, top=keys, rows=[-1], regions=torch.eye(keys))
    p = regard.attention_weights(q, k, map=MAPS[map_], causal=causal)
    check(summary, p, torch.eye(keys, dtype=torch.float64), [-1])
    torch.testing.assert_close(summary.regions, p)


@pytest.mark.parametrize("size", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_softmax_of_all_keys_without_a_gradient(size, dtype, monkeypatch):
    """A loop of its own, in small blocks: also where weights become zero, which the support counts."""
    monkeypatch.setattr(query_blocks, "BUDGET", 80)
    q, k = (torch.randn(2, 3, n, 4).mul(size).to(dtype) for n in (7, 9))
    how = {"top": 2, "rows": [3], "regions": torch.eye(9)[:2]}
    with torch.no_grad():
        assert LazyWeights(q, k).softmax_blocks() is not None
        got = regard.summarize(q, k, regard.Euclidean(8.0), **how)
    assert LazyWeights(q, k).softmax_blocks() is None
    expected = regard.summarize(q, k, regard.Euclidean(8.0), **how)
    assert got.entropy.dtype == expected.entropy.dtype
    for name in ("entropy", "support", "received", "top_weights", "regions", "rows"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
    assert (got.support < 9).any() == (size == 300.0)


def test_grouped_queries(budget):
    q, k = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4)
    p = regard.attention_weights(q, k.repeat_interleave(2, -3), causal=True)
    summary = regard.summarize(q, k, causal=True, enable_gqa=True, rows=[4])
    torch.testing.assert_close(summary.received, p.sum(-2))
    torch.testing.assert_close(summary.entropy, obvious.entropy(p).float())
    torch.testing.assert_close(summary.rows, p[..., 4:, :])
    with pytest.raises(ValueError, match="enable_gqa=True"):
        regard.summarize(q, k)


@pytest.mark.parametrize("map_", ["softmax", "entmax", "learned alpha", "gate"])
@pytest.mark.parametrize("extras", ["plain", "causal", "dead row", "bias"])
@pytest.mark.parametrize("budget", [1 << 21, 4], indirect=True)
def test_gradients(map_, extras, budget):
    q, k = (x[:1, :, :4].clone() for x in inputs())
    how = {name: x[..., :4, :4] if isinstance(x, torch.Tensor) else x for name, x in EXTRAS[extras].items()}
    regions = torch.rand(2, 4, dtype=torch.float64)

    def made(q, k):
        s = regard.summarize(q, k, map=MAPS[map_], **how, top=2, regions=regions, rows=[1])
        return s.entropy, s.received, s.top_weights, s.regions, s.rows

    assert torch.autograd.gradcheck(made, (q.requires_grad_(), k.requires_grad_()), fast_mode=True)


def test_gradients_reach_the_parameters(budget):
    q, k = inputs()
    alpha = torch.full((2, 1, 1), 1.5, dtype=torch.float64, requires_grad=True)
    v = torch.randn(4, dtype=torch.float64, requires_grad=True)
    summary = regard.summarize(q, k, regard.Additive(v), regard.Entmax(alpha))
    got = torch.autograd.grad(summary.entropy.sum() + summary.received.square().sum(), (alpha, v))
    p = regard.attention_weights(q, k, regard.Additive(v), regard.Entmax(alpha))
    entropy = -(p * p.clamp(min=1e-300).log()).sum()
    expected = torch.autograd.grad(entropy + p.sum(-2).square().sum(), (alpha, v))
    torch.testing.assert_close(got, expected)


def test_half_precision_is_summed_in_float32():
    x = torch.randn(1, 2, 4096, 8, dtype=torch.bfloat16)
    summary = regard.summarize(x, x)
    assert summary.received.dtype == summary.entropy.dtype == torch.float32
    expected = regard.summarize(x.double(), x.double())
    torch.testing.assert_close(summary.received, expected.received.float(), rtol=1e-5, atol=1e-5)
    assert summary.received.sum() == pytest.approx(2 * 4096, rel=1e-6)


def test_what_is_not_wanted_is_not_there():
    x = torch.randn(5, 4)
    summary = regard.summarize(x, x, want=["received"])
    assert summary.entropy is None
    assert repr(summary) == "AttentionSummary(received=(5,))"
    with pytest.raises(ValueError, match="'entropy' and 'support'"):
        _ = summary.effective
    assert repr(regard.summarize(x, x, want=[], rows=[0])) == "AttentionSummary(rows=(1, 5))"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"want": "entropy"}, r"^want: got 'entropy', expected some of"),
        ({"want": ["mass"]}, r"^want: got \['mass'\]"),
        ({"top": 8}, r"^top: got 8, expected a number of keys from 0 to 7"),
        ({"top": True}, r"^top: got True"),
        ({"rows": [5]}, r"^at: got \[5\], expected places of the 5 queries"),
        ({"rows": [0.5]}, r"^at: got \[0.5\], expected a list of whole numbers"),
        ({"regions": torch.ones(2, 6)}, r"^regions: got shape \(2, 6\), expected 7 entries"),
        ({"regions": torch.ones(3, 2, 7)}, r"^regions: got shape \(3, 2, 7\), expected a shape that broadcasts"),
        ({"map": "mean"}, r"^map: got a negative weight"),
    ],
)
def test_errors(how, message):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        regard.summarize(torch.randn(5, 4), torch.randn(7, 4), **how)


def test_empty_batches_and_no_queries():
    summary = regard.summarize(torch.zeros(0, 3, 4), torch.zeros(0, 5, 4), top=2)
    assert summary.entropy.shape == (0, 3)
    assert summary.top_weights.shape == (0, 3, 2)
    assert (regard.summarize(torch.zeros(0, 4), torch.zeros(5, 4)).received == 0).all()


@pytest.mark.parametrize("extras", EXTRAS)
def test_products_on_both_sides(extras, budget):
    q, k = inputs()
    p = regard.attention_weights(q, k, map=regard.sparsemax, **EXTRAS[extras])
    lazy = LazyWeights(q, k, map=regard.sparsemax, **EXTRAS[extras])
    v, r = torch.randn(3, 2, 9, 5, dtype=torch.float64), torch.randn(2, 4, 7, dtype=torch.float64)
    torch.testing.assert_close(lazy.times(v), p @ v)
    torch.testing.assert_close(lazy.transposed_times(r), r @ p)
    assert lazy.shape == p.shape
    torch.testing.assert_close(
        lazy.with_map("softmax").rows([1]), regard.attention_weights(q, k, **EXTRAS[extras])[..., 1:2, :]
    )


@pytest.mark.parametrize("causal", [False, True])
def test_rollout(causal, budget):
    layers = [
        LazyWeights(x, x, map=m, causal=causal)
        for x, m in zip(torch.randn(3, 2, 2, 6, 4).double(), list(MAPS.values())[:3], strict=True)
    ]
    weights = [layer.rows(range(6)) for layer in layers]
    for residual in (0.5, 0.0, 0.9):
        whole = obvious.rollout(weights, residual)
        torch.testing.assert_close(regard.rollout(layers, [0, -1], residual=residual), whole[..., [0, -1], :])
    torch.testing.assert_close(regard.rollout(weights, [0, -1]), regard.rollout(layers, [0, -1]))
    assert whole.sum(-1) == pytest.approx(torch.ones(2, 6).double())


def test_rollout_refuses_what_has_none():
    x, y = torch.zeros(1, 3, 4), torch.zeros(1, 5, 4)
    with pytest.raises(ValueError, match=r"^layers: got none"):
        regard.rollout([], [0])
    with pytest.raises(ValueError, match=r"^layers\[1\]: got weights \(1, 3, 5\)"):
        regard.rollout([LazyWeights(x, x), LazyWeights(x, y)], [0])
    with pytest.raises(ValueError, match=r"^at: got \[3\]"):
        regard.rollout([LazyWeights(x, x)], [3])


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("map_", ["sparsemax", "entmax", "softmax"])
def test_sparse_weights(map_, extras, budget):
    q, k = inputs()
    p = regard.attention_weights(q, k, map=MAPS[map_], **EXTRAS[extras])
    csr = regard.sparse_weights(q, k, map=MAPS[map_], **EXTRAS[extras])
    assert csr.layout == torch.sparse_csr
    assert csr.values().numel() == (p != 0).sum()
    torch.testing.assert_close(csr.to_dense().reshape(p.shape), p)
    ends = csr.crow_indices().tolist()
    assert all(csr.col_indices()[a:b].diff().gt(0).all() for a, b in itertools.pairwise(ends))


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that an operation makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else [made]:
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                self.entries = max(self.entries, x.numel())
        return made


@pytest.mark.parametrize("ask", ["summary", "rollout", "sparse"])
def test_the_square_is_never_in_memory(ask, monkeypatch):
    monkeypatch.setattr(query_blocks, "BUDGET", 1 << 12)
    x = torch.randn(1, 2, 512, 4)
    with Largest() as seen, torch.no_grad():
        if ask == "summary":
            regard.summarize(x, x, top=2, regions=torch.ones(3, 512), rows=[0], causal=True)
        elif ask == "rollout":
            regard.rollout([LazyWeights(x, x), LazyWeights(x, x)], [0])
        else:
            regard.sparse_weights(50 * x, x)
    assert seen.entries < 1 << 16 < 512**2
