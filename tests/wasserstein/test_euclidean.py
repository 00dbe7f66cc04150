"""Attention by Euclidean distances is kernel regression, and loses no digits where points lie far apart."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import attend as reference
from reference import maps as reference_maps
from torch.autograd import gradcheck

import regard
from regard import Euclidean, attend, attention_weights, explain_attend


def bandwidths(q, k, tau, n):
    """h_i^2 by bisection on (1.8): the weights sum to one."""
    squares = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    low = squares.amin(-1, keepdim=True)
    high = low + n * tau
    for _ in range(200):
        middle = (low + high) / 2
        above = ((middle - squares).clamp(min=0) ** n).sum(-1, keepdim=True) > (n * tau) ** n
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return squares, low


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@given(tau=st.floats(0.05, 5.0), seed=st.integers(0, 1000))
def test_entmax_is_a_power_of_the_epanechnikov_kernel(n, tau, seed):
    """Epanechnikov, biweight, triweight, ...: the weights over their sum, at the bandwidth that makes it one."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in (4, 12))
    squares, bandwidth = bandwidths(q, k, tau, n)
    kernel = (1 - squares / bandwidth).clamp(min=0) ** n
    expected = kernel / kernel.sum(-1, keepdim=True)
    p = attention_weights(q, k, Euclidean(tau), regard.Entmax(1 + 1 / n))
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close((bandwidth.squeeze(-1) >= squares.amin(-1)), torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize("map_name", ["softmax", "sparsemax", "entmax"])
@pytest.mark.parametrize("tau", [0.3, torch.tensor([0.2, 2.0], dtype=torch.float64).view(2, 1, 1)])
def test_the_obvious_program(map_name, tau):
    tau = tau.clone().requires_grad_() if isinstance(tau, torch.Tensor) else tau
    q, k = (torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (5, 7))
    v = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    affinity = Euclidean(tau)
    got = attend(q, k, v, affinity, map_name)
    expected = reference.attend(q, k, v, affinity, getattr(reference_maps, map_name))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    leaves = [q, k, v, *([tau] if isinstance(tau, torch.Tensor) else [])]
    direction = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, leaves, direction) for x in (got, expected)), strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=1e-9)


def test_gradcheck_also_where_a_query_is_a_key():
    q, v = torch.randn(4, 2, dtype=torch.float64, requires_grad=True), torch.randn(4, 2, dtype=torch.float64)
    for map_ in ("softmax", "entmax-1.3"):
        assert gradcheck(lambda x, m=map_: attend(x, x, v, Euclidean(0.5), m), (q,))


def test_softmax_is_one_fused_call_and_sparsemax_the_kernel():
    x = torch.zeros(1, 4096, 64)
    assert explain_attend(x, x, x, Euclidean()).algorithm == "fused"


@pytest.mark.parametrize("map_", ["softmax", "sparsemax"])
@pytest.mark.parametrize("spread", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_no_digits_are_lost_where_keys_lie_far_apart(map_, spread, offset):
    """Pairs of close points that are far from all other pairs: the expanded square has no digits left for them."""
    centres = torch.randn(300, 8) * spread + offset
    k = (centres.repeat(2, 1) + 0.3 * torch.randn(600, 8)).round(decimals=2)
    q, v = k[:500], torch.randn(600, 8)
    exact = attend(q.double(), k.double(), v.double(), Euclidean(0.5), map_)
    expected = reference.attend(q.double(), k.double(), v.double(), Euclidean(0.5), getattr(reference_maps, map_))
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-3)
    got = attend(q, k, v, Euclidean(0.5), map_)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("affinity", [Euclidean(0.5), regard.GaussianW2(0.5)], ids=["points", "gaussians"])
def test_half_precision_squares_in_a_wider_one(dtype, affinity):
    q, k, v = (torch.rand(1, 2, n, 8).mul(4).to(dtype) for n in (50, 60, 60))
    exact = attend(q.double(), k.double(), v.double(), affinity)
    got = attend(q, k, v, affinity)
    assert got.dtype == dtype
    assert float((got.double() - exact).abs().max()) <= 4 * torch.finfo(dtype).eps


def test_a_module_and_a_sink():
    layer = regard.nn.MultiheadAttention(16, 4, batch_first=True, affinity=Euclidean(8.0), add_sink=True)
    x = torch.randn(2, 5, 16)
    c, p = layer(x, x, x)
    assert c.shape == x.shape
    assert (p.sum(-1) < 1).all()
    q, k, v = (torch.randn(6, 3, dtype=torch.float64) for _ in range(3))
    s = torch.cat([reference.scores(Euclidean(0.5), q, k), torch.full((6, 1), -1.0, dtype=torch.float64)], -1)
    expected = torch.softmax(s, -1)[:, :6] @ v
    torch.testing.assert_close(attend(q, k, v, Euclidean(0.5), sink=-1.0), expected)
    assert math.isclose(float(regard.attention_weights(q, k, Euclidean(0.5), sink=-1e4).sum()), 6.0)
