"""The native kernels of entmax: supports, rows of one batch, axes, threads, bad scores. `twins.py` has the rest."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import maps as reference_maps

import regard
from regard import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")
ALPHAS = [2.0, 1.5, 1.3, 1.05, 1.9]


def rows(kind, n):
    torch.manual_seed(n)
    x = torch.randn(6, n)
    return {
        "unit": x,
        "wide": 30 * x,
        "narrow": 1e-3 * x,
        "far": x + 1000,
        "equal": torch.ones(6, n),
        "denormal": 1e-40 * x,
        "ties": x.round(),
        "masked": x.masked_fill(x > 0.5, -math.inf),
    }[kind]


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("kind", ["unit", "wide", "narrow", "far", "equal", "denormal", "ties", "masked"])
@pytest.mark.parametrize("n", [1, 8, 17, 513, 4097])
def test_the_support_is_that_of_the_plain_path(n, kind, alpha, plain):
    x = rows(kind, n)
    expected = plain(regard.entmax, x.double(), alpha)
    sure = (expected == 0) | (expected > 1e-9)  # in between the rounding of the plain path decides
    assert torch.equal((regard.entmax(x, alpha) > 0)[sure], (expected > 0)[sure])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", [3, 40, 196, 511])
def test_a_row_does_not_depend_on_its_neighbours(n, alpha, dtype, plain):
    """Short rows are worked on eight at a time."""
    x = torch.cat([rows(kind, n) for kind in ("unit", "wide", "ties", "masked")]).to(dtype)[:21]
    x[4], x[13] = -math.inf, math.nan
    with regard.checks(False):
        p, alone = regard.entmax(x, alpha), torch.cat([regard.entmax(row[None], alpha) for row in x])
        expected = plain(regard.entmax, x.double(), alpha)
    assert torch.equal(p.nan_to_num(7), alone.nan_to_num(7))
    torch.testing.assert_close(p.double(), expected, rtol=0, atol=1e-6, equal_nan=True)
    assert not bool(p[4].any())


def test_another_axis():
    x, alpha = torch.randn(5, 3, 40, dtype=torch.float64), torch.rand(3, 1, dtype=torch.float64) * 0.9 + 1.05
    turned = regard.entmax(x.mT, alpha.T.unsqueeze(0), dim=-2)
    assert torch.equal(turned, regard.entmax(x, alpha).mT)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**30), st.sampled_from([0.01, 1.0, 20.0]), st.sampled_from(ALPHAS))
def test_rows_are_distributions(n, seed, scale, alpha):
    x = scale * torch.randn(3, n, generator=torch.Generator().manual_seed(seed))
    p = regard.entmax(x, alpha)
    assert bool((p >= 0).all())
    torch.testing.assert_close(p.sum(-1), torch.ones(3), rtol=0, atol=2e-6)
    torch.testing.assert_close(regard.entmax(x.flip(-1), alpha), p.flip(-1), rtol=0, atol=1e-6)
    torch.testing.assert_close(regard.entmax(x + 3, alpha), p, rtol=0, atol=2e-5 * scale + 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_scores_are_named(bad):
    x = torch.zeros(4, 100)
    x[2, 77] = bad
    for map_ in (regard.sparsemax, regard.entmax):
        with pytest.raises(ValueError, match="scores below"):
            map_(x)
        with regard.checks(False):
            p = map_(x)
        assert bool(p[2].isnan().all())
        assert not bool(p[:2].isnan().any())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads):
    x, before = torch.randn(700, 200), torch.get_num_threads()
    expected, other = regard.entmax(x), regard.entmax(x, 1.3)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(regard.entmax(x), expected)
        assert torch.equal(regard.entmax(x, 1.3), other)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("n", [5, 49, 196, 1023])
def test_rows_of_single_precision_keep_their_digits(n, alpha):
    """Equal scores below one: their weights are small differences, of which one float would round much away."""
    one_above = [torch.zeros(n).index_fill_(0, torch.tensor([n // 3]), top) for top in (0.1, 0.5, 0.99, 3.0)]
    spread = [torch.randn(n) * size for size in (0.01, 0.1, 1.0, 4.0, 30.0)]
    s = torch.stack([*one_above, *spread])
    torch.testing.assert_close(regard.entmax(s, alpha).double(), regard.entmax(s.double(), alpha), rtol=0, atol=3e-6)


def test_neighbours_with_other_alphas():
    """Rows share a register as far as they share alpha."""
    s, alpha = torch.randn(40, 30), torch.tensor([1.2] * 3 + [1.7] * 20 + [2.0] * 16 + [1.5]).view(40, 1)
    each = torch.cat([regard.entmax(s[i : i + 1], float(alpha[i])) for i in range(40)])
    torch.testing.assert_close(regard.entmax(s, alpha), each, rtol=0, atol=3e-6)


def test_alphas_of_neighbours_change_no_bit():
    """Whatever the rows before it, and so for every number of threads."""
    s, alpha = torch.randn(24, 30), torch.tensor([1.5, 1.3, 1.3, 2.0, 1.7, 1.02] * 4).view(24, 1)
    each = torch.cat([regard.entmax(s[i:], alpha[i:])[:1] for i in range(20)])
    assert torch.equal(regard.entmax(s, alpha)[:20], each)


@pytest.mark.parametrize(
    "map_", [regard.sparsemax, regard.entmax, partial(regard.entmax, alpha=1.3), partial(regard.tvmax, gamma=0.1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_gradients(map_, dtype):
    """`is_grads_batched` runs the backward pass in a vmap of its own, whose tensors have no memory."""
    s = torch.randn(2, 5, 6, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    p = map_(s)
    directions = torch.randn(3, *p.shape, dtype=dtype)
    (together,) = torch.autograd.grad(p, s, directions, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(p, s, direction, retain_graph=True)[0] for direction in directions]
    torch.testing.assert_close(together, torch.stack(alone))


def test_powers_in_double_precision_keep_their_digits():
    """Weights of 200 and of 2000 entries against the slow twin, for powers up to a hundred."""
    for n in (200, 2000):
        s = torch.randn(20, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        for alpha in (1.01, 1.1, 1.3, 1.7, 1.95):
            torch.testing.assert_close(
                regard.entmax(s, alpha=alpha), reference_maps.entmax(s, alpha), rtol=0, atol=1e-13
            )
