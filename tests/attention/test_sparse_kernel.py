"""Sparse attention by the native kernels: masks, affinities and derivatives of the dense program, and errors."""

import math

import pytest
import torch

import regard
from regard import native
from regard.attention.call import Call
from regard.attention.sparse import SHORTEST, Sparse

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")


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
def test_sparse_attention_equals_the_dense_program(kind, plain):
    q, k, v = inputs()
    run = lambda: regard.attend(q, k, v, map=regard.sparsemax, **MASKS[kind])  # noqa: E731
    assert regard.explain_attend(q, k, v, map=regard.sparsemax, **MASKS[kind]).algorithm == "sparse"
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
