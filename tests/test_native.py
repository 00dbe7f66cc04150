"""The native kernels against the plain path in float64, on every awkward size, and the package without them."""

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import native
from regard.attention.call import Call
from regard.attention.sparse import SHORTEST, Sparse
from regard.continuous import quadrature
from regard.maps import _threshold

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")
SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 511, 512, 513, 4097]
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


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("kind", ["unit", "wide", "narrow", "far", "equal", "denormal", "ties", "masked"])
@pytest.mark.parametrize("n", SIZES)
def test_rows_equal_the_plain_path(n, kind, alpha, plain):
    x = rows(kind, n)
    expected = plain(regard.entmax, x.double(), alpha)
    single, double = regard.entmax(x, alpha), regard.entmax(x.double(), alpha)
    torch.testing.assert_close(double, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-6)
    if alpha in (1.5, 2.0):
        sure = (expected == 0) | (expected > 1e-9)  # in between the rounding of the plain path decides
        assert torch.equal((single > 0)[sure], (expected > 0)[sure])


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


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", SIZES)
def test_gradients_equal_the_plain_path(n, alpha, plain):
    x = rows("unit", n).double()
    p, g = regard.entmax(x, alpha), torch.randn(6, n, dtype=torch.float64)
    expected = plain(partial(_pull, x, alpha), g)
    torch.testing.assert_close(_pull(x, alpha, g), expected, rtol=0, atol=1e-10)
    single = _threshold.pullback_rows(p.float(), g.float(), alpha, -1)
    torch.testing.assert_close(
        single.double(), _threshold.pullback_rows(p.float().double(), g, alpha, -1), rtol=0, atol=1e-5
    )


def _pull(x, alpha, g):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(regard.entmax(leaf, alpha), leaf, g)[0]


def test_each_row_may_have_its_alpha(plain):
    x, alpha = torch.randn(5, 3, 40, dtype=torch.float64), torch.rand(3, 1, dtype=torch.float64) * 0.9 + 1.05
    torch.testing.assert_close(regard.entmax(x, alpha), plain(regard.entmax, x, alpha), rtol=0, atol=1e-11)
    turned = regard.entmax(x.mT, alpha.T.unsqueeze(0), dim=-2)
    torch.testing.assert_close(turned, plain(regard.entmax, x, alpha).mT, rtol=0, atol=1e-11)


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


def inputs(lead=(2,), queries=600, keys=700, width=8):
    torch.manual_seed(0)
    return [torch.randn(*lead, n, width, requires_grad=True) for n in (queries, keys, keys)]


MASKS = {
    "none": {},
    "keys": {"mask": torch.rand(2, 1, 700, generator=torch.Generator().manual_seed(1)) < 0.7},
    "pairs": {"mask": torch.rand(600, 700, generator=torch.Generator().manual_seed(2)) < 0.7},
    "causal": {"causal": True},
    "a query with no key": {"mask": torch.arange(600).unsqueeze(-1).expand(600, 700) != 5},
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("map_", [regard.sparsemax, regard.entmax, partial(regard.entmax, alpha=2)])
def test_sparse_attention_equals_the_dense_program(map_, kind, plain):
    q, k, v = inputs()
    run = lambda: regard.attend(q, k, v, map=map_, **MASKS[kind])  # noqa: E731
    assert regard.explain_attend(q, k, v, map=map_, **MASKS[kind]).algorithm == "sparse"
    c, dense = run(), plain(run)
    torch.testing.assert_close(c, dense, rtol=0, atol=1e-5)
    direction = torch.randn_like(c)
    for ours, theirs in zip(*(torch.autograd.grad(x, (q, k, v), direction) for x in (c, dense)), strict=True):
        # A key at the very edge of a support may be in for one and out for the other: the gradient jumps there.
        assert float(((ours - theirs).abs() > 1e-4).float().mean()) < 1e-3


@pytest.mark.parametrize("affinity", [regard.Bilinear(torch.randn(8, 8)), regard.Dot(0.5), regard.GaussianW2(tau=4.0)])
def test_sparse_attention_of_factored_affinities(affinity, plain):
    q, k, v = [x.abs() for x in inputs()]
    run = lambda: regard.attend(q, k, v, affinity, regard.sparsemax)  # noqa: E731
    torch.testing.assert_close(run(), plain(run), rtol=0, atol=2e-5)


def test_dense_weights_go_the_dense_way(plain):
    """With all scores equal no key drops out, and there is nothing to skip."""
    q, k, v = inputs()
    run = lambda: regard.attend(q * 0, k, v, map=regard.sparsemax)  # noqa: E731
    torch.testing.assert_close(run(), plain(run))
    call = Call.of(q * 0, k, v, regard.Dot(), regard.sparsemax)
    assert Sparse().suits(call)
    assert Sparse().compute(call) is None


def test_second_derivatives_of_sparse_attention(plain):
    q, k, v = inputs(())
    assert q.shape[0] * k.shape[0] >= SHORTEST

    def penalty():
        (g,) = torch.autograd.grad(regard.attend(q, k, v, map=regard.entmax).square().sum(), q, create_graph=True)
        return torch.autograd.grad(g.square().sum(), v)[0]

    torch.testing.assert_close(penalty(), plain(penalty), rtol=1e-3, atol=1e-3)


def test_sparse_attention_names_nan():
    q, k, v = inputs()
    with torch.no_grad():
        k[0, 3, 2] = math.nan
    with pytest.raises(ValueError, match=r"^k: got NaN"):
        regard.attend(q, k, v, map=regard.sparsemax)


@pytest.mark.once
def test_without_kernels_everything_works_in_a_process_of_its_own():
    code = (
        "import regard, torch; print(regard.native_kernels()); print(regard.sparsemax(torch.tensor([1.0, 1.4, 0.1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"REGARD_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("off")
    assert "0.3000, 0.7000, 0.0000" in done.stdout


@pytest.mark.once
def test_the_build_process_goes_on_without_a_compiler(tmp_path):
    root = Path(__file__).parents[1]
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path),
    ]
    without = os.environ | {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
    done = subprocess.run(command, cwd=root, env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no native kernels" in done.stderr
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_largest_entry_of_any_layout(dtype):
    for n in (1, 7, 8, 9, 129, 40_000):
        x = torch.randn(2, n, 12).to(dtype)
        heads = x.view(2, n, 3, 4).transpose(1, 2)
        for view in (x, heads, heads[:, 1:], x[0], x[0, 0], x[:, -1:], x[1:].expand(3, n, 12), x.flatten()):
            assert native.largest(view) == view.abs().max().item()
        for bad in (math.nan, math.inf, -math.inf):
            for at in {0, n // 2, n - 1}:
                y = x.clone()
                y[1, at, 7] = bad
                assert native.largest(y) == native.largest(y.view(2, n, 3, 4).transpose(1, 2)[1:, 1]) == math.inf
                assert native.largest(y[:, :, :7]) == x[:, :, :7].abs().max().item()  # beside it
    assert native.largest(torch.ones(3, 4).mT[:2]) is None  # left to torch
    assert native.largest(torch.ones(3, dtype=torch.int32)) is None
    assert native.largest(torch.zeros(5)) == 0


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize(("rows", "width"), [((1, 1), 1.0), ((3, 17), 1.0), ((40, 100), 6.0)])
def test_chords_equal_the_plain_path(rows, width, q):
    torch.manual_seed(0)
    y1, y2 = 4 * torch.randn(*rows, 1), 4 * torch.randn(*rows, 1)
    short = 1.5 + width * torch.rand(rows[0], 1, 1)
    flat = [y1, y2, short + 4 * torch.rand(rows[0], 1, 1), short]
    nodes, reach = quadrature.RULES[torch.float32]
    sums = quadrature._by_kernel(flat, q, nodes, reach)
    expected = quadrature._block(*(x.double() for x in flat), 1, q, nodes, reach)
    scale = expected.abs().amax((0, 1)).clamp(min=1e-6)
    assert float(((sums - expected).abs() / scale).max()) < 5e-5
    assert quadrature._by_kernel([*flat[:3], torch.full_like(short, 0.5)], q, nodes, reach) is None
