"""Sparse attention by the native kernels: masks, affinities and derivatives of the dense program, and errors."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import attend as reference
from reference import maps as reference_maps

import regard
from regard import native
from regard.attention import sparse_function
from regard.attention.call import Call
from regard.attention.sparse import Sparse

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")

# One size below and above that of a register, of a tile and of a block, and the sizes of a ViT.
SHAPES = [
    (1, 1, 1, 1, 1),
    (3, 5, 7, 3, 2),
    (2, 7, 33, 16, 16),
    (2, 97, 65, 64, 32),
    (2, 197, 197, 64, 64),
    (3, 49, 49, 32, 32),
    (1, 260, 1030, 8, 24),
]
ALPHAS = [2.0, 1.5, 1.3, 1.05, 1.9]


def inputs(lead=(2,), queries=600, keys=700, width=8, values=None, spread=1.0):
    torch.manual_seed(0)
    widths = width, width, values or width
    q, k, v = (torch.randn(*lead, n, w) for n, w in zip((queries, keys, keys), widths, strict=True))
    return [x.requires_grad_() for x in (q * spread, k, v)]


MASKS = {
    "none": {},
    "keys": {"mask": torch.rand(2, 1, 700, generator=torch.Generator().manual_seed(1)) < 0.7},
    "the same keys for all": {"mask": torch.rand(700, generator=torch.Generator().manual_seed(1)) < 0.7},
    "pairs": {"mask": torch.rand(600, 700, generator=torch.Generator().manual_seed(2)) < 0.7},
    "queries": {"mask": torch.rand(600, 1, generator=torch.Generator().manual_seed(2)) < 0.7},
    "pairs of each head": {"mask": torch.rand(2, 600, 700, generator=torch.Generator().manual_seed(2)) < 0.7},
    "causal": {"causal": True},
    "upper-left": {"causal": "upper-left"},
    "pairs and causal": {
        "mask": torch.rand(600, 700, generator=torch.Generator().manual_seed(2)) < 0.7,
        "causal": True,
    },
    "a query with no key": {"mask": torch.arange(600).unsqueeze(-1).expand(600, 700) != 5},
    "bias": {"bias": torch.randn(600, 700, generator=torch.Generator().manual_seed(3))},
    "bias of keys and mask": {
        "bias": torch.randn(2, 1, 700, generator=torch.Generator().manual_seed(3)),
        "mask": torch.rand(700, generator=torch.Generator().manual_seed(1)) < 0.7,
    },
    "bias of -inf": {"bias": torch.where(torch.arange(700) < 300, 0.0, -math.inf)},
    "bias as low as can be": {"bias": torch.full((700,), torch.finfo(torch.float32).min)},
}


def assert_as_good_as_naive(found, naive, exact, what, terms=0.0):
    """The largest error is at most twice that of the naive program, or a few roundings.

    `terms`: the largest sum of the sizes of what is added up: where it cancels, rounding is relative to that.
    """
    ours, theirs = (float((x.detach().double() - exact.detach()).abs().max()) for x in (found, naive))
    few = 2e-6 * (float(exact.detach().abs().max()) + 1e-3) + 4 * torch.finfo(torch.float32).eps * float(terms)
    assert ours <= 2 * theirs + few, f"{what}: {ours:.3g}, and {theirs:.3g} of the naive program"


def jumps(s, p, alpha):
    """Rows with a score at the very edge of the support, where the gradient jumps and rounding decides."""
    delta = alpha - 1
    top = p.argmax(-1, keepdim=True)
    edge = s.gather(-1, top) - p.gather(-1, top) ** delta / delta
    return ((s - edge).abs() < 1e-3).any(-1, keepdim=True) & (alpha > 1.5)


@pytest.mark.parametrize("spread", [4.0, 1.0, 0.3, 0.0])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_exact_as_the_obvious_program(shape, alpha, spread):
    """Context and gradients, from few weights to all: at most twice the error of scores, map, product in float32."""
    heads, queries, keys, width, values = shape
    leaves = [x.detach().requires_grad_() for x in inputs((heads,), queries, keys, width, values, spread)]
    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    map_ = partial(reference_maps.entmax, alpha=alpha)
    assert regard.explain_attend(*leaves, map=regard.Entmax(alpha)).algorithm == "sparse"
    c = regard.attend(*leaves, map=regard.Entmax(alpha))
    q, k, v = leaves
    naive = map_(q @ k.mT / width**0.5) @ v
    exact = reference.attend(*exact_leaves, regard.Dot(), map_)
    with torch.no_grad():
        s = reference.scores(regard.Dot(), *exact_leaves[:2])
        assert_as_good_as_naive(c, naive, exact, "context", (map_(s) @ v.double().abs()).max())
        direction = torch.randn(c.shape).double().masked_fill(jumps(s, map_(s), alpha), 0.0)
    found, rounded, expected = (
        torch.autograd.grad(x, y, direction.to(x.dtype))
        for x, y in ((c, leaves), (naive, leaves), (exact, exact_leaves))
    )
    for name, ours, theirs, truth in zip("qkv", found, rounded, expected, strict=True):
        terms = (map_(s).mT @ direction.abs()).max() if name == "v" else 0.0
        assert_as_good_as_naive(ours, theirs, truth, f"gradient in {name}", terms)


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
@pytest.mark.parametrize("spread", [1.0, 0.1])
@pytest.mark.parametrize("kind", MASKS)
def test_sparse_attention_equals_the_dense_program(kind, spread, alpha, plain):
    q, k, v = inputs(spread=spread)
    run = lambda: regard.attend(q, k, v, map=regard.Entmax(alpha), **MASKS[kind])  # noqa: E731
    assert regard.explain_attend(q, k, v, map=regard.Entmax(alpha), **MASKS[kind]).algorithm == "sparse"
    c, dense = run(), plain(run)
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)
    direction = torch.randn_like(c)
    for ours, theirs in zip(*(torch.autograd.grad(x, (q, k, v), direction) for x in (c, dense)), strict=True):
        # A key at the very edge of a support may be in for one and out for the other: the gradient jumps there.
        assert float(((ours - theirs).abs() > 1e-4 + 1e-5 * theirs.abs().max()).float().mean()) < 1e-3


def cropped(extras, keys):
    """Masks and biases of fewer keys."""
    return {name: x[..., :keys] if torch.is_tensor(x) and x.shape[-1] > 1 else x for name, x in extras.items()}


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
@pytest.mark.parametrize("spread", [1.0, 0.1])
@pytest.mark.parametrize("kind", MASKS)
def test_few_keys_equal_the_dense_program(kind, spread, alpha, plain):
    """A register of queries at a time: lists of weights if few are not zero, all of them else."""
    q, k, v = inputs(queries=600, keys=41, width=16, values=32, spread=spread)
    extras = cropped(MASKS[kind], 41)
    run = lambda: regard.attend(q, k, v, map=regard.Entmax(alpha), **extras)  # noqa: E731
    c, dense = run(), plain(run)
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)
    direction = torch.randn_like(c)
    for ours, theirs in zip(*(torch.autograd.grad(x, (q, k, v), direction) for x in (c, dense)), strict=True):
        assert float(((ours - theirs).abs() > 1e-4 + 1e-5 * theirs.abs().max()).float().mean()) < 1e-3


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
def test_a_row_does_not_depend_on_its_neighbours(alpha):
    """Queries share registers, and a block of them the choice of what is kept."""
    q, k, v = inputs((1,), 70, 49, 32)
    context = lambda q: regard.attend(q, k, v, map=regard.Entmax(alpha))  # noqa: E731
    c, alone = context(q), torch.cat([context(q[:, i : i + 7]) for i in range(0, 70, 7)], -2)
    assert torch.equal(c, alone)


@given(
    st.integers(1, 40),
    st.integers(1, 90),
    st.integers(1, 40) | st.sampled_from([16, 32, 48]),
    st.integers(1, 40) | st.sampled_from([16, 32, 48]),
    st.sampled_from([2.0, 1.5, 1.2]),
    st.sampled_from([False, True, "upper-left"]),
    st.sampled_from([8.0, 1.0, 0.1]),
)
def test_every_size(queries, keys, width, values, alpha, causal, spread):
    """Tiles, panels and lists end anywhere; contexts lie among the values, and are those of the dense program."""
    q, k, v = inputs((1, 2), queries, keys, width, values, spread)
    run = lambda: regard.attend(q, k, v, map=regard.Entmax(alpha), causal=causal)  # noqa: E731
    c = run()
    with native.switched_off():
        dense = run()
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)
    assert bool((c.abs() <= v.abs().amax(-2, keepdim=True) + 1e-5).all())
    found, expected = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (c, dense))
    for ours, theirs in zip(found, expected, strict=True):
        assert float(((ours - theirs).abs() > 1e-3 * (1 + theirs.abs().max())).float().mean()) < 1e-2


@pytest.mark.parametrize("affinity", [regard.Bilinear(torch.randn(8, 8)), regard.Dot(0.5), regard.GaussianW2(tau=4.0)])
def test_sparse_attention_of_factored_affinities(affinity, plain):
    q, k, v = [x.abs() for x in inputs()]
    run = lambda: regard.attend(q, k, v, affinity, regard.sparsemax)  # noqa: E731
    torch.testing.assert_close(run(), plain(run), rtol=0, atol=2e-5)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_a_scale_of_any_sign(scale, plain):
    q, k, v = inputs()
    run = lambda: regard.attend(q, k, v, regard.Dot(scale), regard.entmax)  # noqa: E731
    c, dense = run(), plain(run)
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (c, dense)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_one_alpha_for_each_head_is_learned(spread, plain):
    alpha = torch.tensor([1.05, 1.3, 1.5, 1.9]).view(4, 1, 1).requires_grad_()
    leaves = [*inputs((3, 4), 50, 60, 16, spread=spread), alpha]
    run = lambda: regard.attend(*leaves[:3], map=regard.Entmax(alpha))  # noqa: E731
    assert regard.explain_attend(*leaves[:3], map=regard.Entmax(alpha)).algorithm == "sparse"
    c, dense = run(), plain(run)
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)
    direction = torch.randn_like(c)
    for ours, theirs in zip(*(torch.autograd.grad(x, leaves, direction) for x in (c, dense)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1, 1), (3, 4, 1, 1)])
def test_alphas_of_any_shape_that_fits_heads(shape, plain):
    alpha = torch.full(shape, 1.4, requires_grad=True)
    q, k, v = inputs((3, 4), 9, 20, 16)
    run = lambda: regard.attend(q, k, v, map=regard.Entmax(alpha))  # noqa: E731
    found, expected = (torch.autograd.grad(x().square().sum(), alpha)[0] for x in (run, lambda: plain(run)))
    assert found.shape == alpha.shape
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("alpha", [torch.full((9, 1), 1.4), torch.tensor(1.001), torch.tensor(2.5)])
def test_other_alphas_go_another_way(alpha):
    q, k, v = inputs((2,), 9, 20, 16)
    assert regard.explain_attend(q, k, v, map=regard.Entmax(alpha)).algorithm == "direct"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in inputs((2,), 50, 60, 16))
    c = regard.attend(q, k, v, map=regard.entmax)
    assert regard.explain_attend(q, k, v, map=regard.entmax).algorithm == "sparse"
    assert c.dtype == dtype
    exact = regard.attend(q.double(), k.double(), v.double(), map=regard.entmax)
    torch.testing.assert_close(c.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    torch.autograd.grad(c.sum(), (q, k, v))


@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_without_room_for_supports_weights_are_computed_again(spread, monkeypatch):
    """The same gradients to the last bit but one, whether they were stored or not."""
    q, k, v = inputs((2,), 100, 80, 16, spread=spread)
    direction = torch.randn(2, 100, 16)
    stored = torch.autograd.grad(regard.attend(q, k, v, map=regard.entmax), (q, k, v), direction)
    monkeypatch.setattr(sparse_function, "STORED", 100)
    again = torch.autograd.grad(regard.attend(q, k, v, map=regard.entmax), (q, k, v), direction)
    torch.testing.assert_close(again, stored, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 40])
@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_every_number_of_threads_gives_the_same_bits(heads, spread):
    q, k, v = inputs((heads,), 300, 310, 16, spread=spread)

    def run(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            c = regard.attend(q, k, v, map=regard.entmax)
            return c, *torch.autograd.grad(c.square().sum(), (q, k, v))
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(x, y) for x, y in zip(run(1), run(3), strict=True))


def test_grouped_queries(plain):
    q, (_, k, v) = inputs((2, 6), 20, 30, 16)[0], inputs((2, 3), 20, 30, 16)
    run = lambda: regard.attend(q, k, v, map=regard.sparsemax, enable_gqa=True)  # noqa: E731
    assert regard.explain_attend(q, k, v, map=regard.sparsemax, enable_gqa=True).algorithm == "sparse"
    c, dense = run(), plain(run)
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)


def test_heads_that_share_keys_share_their_gradient(plain):
    q, k, v = inputs((2, 3), 20, 30, 16)
    k, v = (x[:, :1].detach().requires_grad_() for x in (k, v))
    run = lambda: regard.attend(q, k, v, map=regard.sparsemax)  # noqa: E731
    found, expected = (torch.autograd.grad(x().square().sum(), (q, k, v)) for x in (run, lambda: plain(run)))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.4, 1.6]).view(2, 1, 1)])
def test_second_derivatives_of_sparse_attention(alpha, plain):
    q, k, v = inputs((2,), 60, 70)
    mask = torch.rand(2, 1, 70) < 0.7

    def penalty():
        c = regard.attend(q, k, v, map=regard.Entmax(alpha), mask=mask, bias=torch.linspace(0, 1, 70))
        (g,) = torch.autograd.grad(c.square().sum(), q, create_graph=True)
        return torch.autograd.grad(g.square().sum(), v)[0]

    torch.testing.assert_close(penalty(), plain(penalty), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3))
def test_sparse_attention_names_what_is_not_finite(place, wrong):
    tensors = inputs()
    with torch.no_grad():
        tensors[place][0, 3, 2] = wrong
    with pytest.raises(ValueError, match=rf"^{'qkv'[place]}: got"):
        regard.attend(*tensors, map=regard.sparsemax)


def test_what_overflows_goes_the_dense_way():
    """Which says so: the kernel stops where scores might not be finite."""
    q, k, v = inputs()
    call = Call.of(q * 1e30, k * 1e30, v, regard.Dot(), regard.sparsemax)
    assert Sparse().suits(call)
    assert Sparse().compute(call) is None
    with pytest.raises(ValueError, match=r"overflow|inf"):
        regard.attend(q * 1e30, k * 1e30, v, map=regard.sparsemax)


def test_the_default_dtype_and_device_change_nothing():
    q, k, v = inputs((2,), 20, 30, 16)
    mask = torch.ones(30, dtype=torch.bool)
    run = lambda: regard.attend(q, k, v, map=regard.entmax, mask=mask)  # noqa: E731
    expected = run()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            c = run()
            torch.autograd.grad(c, (q, k, v), torch.ones_like(c))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(c, expected)
