"""The Triton kernels of sparsemax and entmax, in the corrected interpreter, beside the plain path in float64."""

import math
import subprocess
import sys

import pytest
import torch

import regard
from regard import native

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from interpreter import interpreted
from waits import Waits, as_on_a_device

from regard.gpu import rows as launches
from regard.maps.entmax.triton import entmax_triton, entmax_triton_backward

ALPHAS = [2.0, 1.5, 1.3, 1.1, 1.0001, 0.5]
HALF = {torch.float16: 4.9e-4, torch.bfloat16: 3.9e-3}  # half of the spacing of numbers below one, and a little


KINDS = ["unit", "narrow", "equal", "wide", "negative", "ties", "masked"]


def scores(kind, n):
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    return {
        "unit": x,
        "wide": 30 * x,
        "narrow": 1e-3 * x,
        "negative": x - 1000,
        "equal": torch.full((3, n), -7.0),
        "ties": x.round(),
        "masked": x.masked_fill(x > 0.5, -math.inf),
    }[kind]


def both(s, alpha, mask=None, dim=-1, noise=0.0):
    """Weights and gradients by the kernels, then by the plain path in float64."""
    found = []
    weight = torch.sin(torch.arange(s.numel(), dtype=torch.float64)).view(s.shape).to(s.dtype)
    for dtype in (s.dtype, torch.float64):
        leaves = [s.detach().to(dtype).requires_grad_()]
        order = alpha
        if isinstance(alpha, torch.Tensor):
            order = alpha.detach().to(dtype).requires_grad_()
            leaves.append(order)
        with interpreted(noise) if dtype == s.dtype else native.switched_off():
            p = regard.entmax(leaves[0], order, dim, mask)
            found.append((p.detach(), *torch.autograd.grad(p, leaves, weight.to(dtype))))
    return found


@pytest.mark.parametrize("noise", [0.0, 2.0**-22])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_and_gradients_in_float32(alpha, noise):
    for n in (1, 2, 7, 17, 129) if noise == 0 else (17, 129):
        s = torch.cat([scores(kind, n) for kind in KINDS])
        (p, d), (expected, slope) = both(s, alpha, noise=noise)
        assert float((p - expected).abs().max()) <= 3e-7 + noise, n
        smooth = len(KINDS[:3]) * 3  # elsewhere rounding decides who is in a support
        assert float((d - slope)[:smooth].abs().max()) <= 1e-6 + noise, n


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3, 1.1])
def test_half_precision_is_computed_in_float32(alpha, dtype):
    for n in (5, 64, 200):
        s = scores("unit", n).to(dtype)
        (p, d), (expected, slope) = both(s, alpha)
        assert p.dtype == d.dtype == dtype
        assert float((p - expected).abs().max()) <= HALF[dtype]
        # The gradient is that of rounded weights, and is rounded.
        assert float((d - slope).abs().max()) <= 2 * HALF[dtype]


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3, 1.1, 0.5])
def test_long_rows_in_several_passes(alpha):
    (p, d), (expected, slope) = both(3 * scores("unit", 20011)[:2], alpha)
    assert float((p - expected).abs().max()) <= 3e-7
    assert float((d - slope).abs().max()) <= 1e-6


def test_one_alpha_for_each_row():
    alpha = torch.tensor([0.5, 0.999, 1.0, 1.0001, 1.1, 1.3, 1.5, 1.9, 2.0, 2.5, 4.0]).unsqueeze(-1)
    for n in (9, 130):
        s = torch.randn(11, n)
        (p, d, slope), (p64, d64, slope64) = both(s, alpha)
        assert float((p - p64).abs().max()) <= 1e-6
        for ours, theirs in ((d, d64), (slope, slope64)):  # above alpha = 2 slopes are large
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=5e-6)
    alpha = torch.tensor([[1.2], [1.5], [2.5]])  # one for each head; rows that are not in registers
    (p, d, slope), (p64, d64, slope64) = both(torch.randn(2, 3, 17000), alpha[1:2])
    torch.testing.assert_close(p.double(), p64, rtol=0, atol=3e-7)
    torch.testing.assert_close(slope.double(), slope64, rtol=1e-4, atol=1e-5)
    (p, d, slope), (p64, d64, slope64) = both(torch.randn(2, 3, 33), alpha)
    torch.testing.assert_close(d.double(), d64, rtol=1e-5, atol=3e-6)


MASKS = {
    "keys": lambda: torch.rand(33) < 0.6,
    "pairs": lambda: torch.rand(2, 3, 4, 33) < 0.6,
    "batch": lambda: torch.rand(2, 1, 1, 33) < 0.6,
    "heads": lambda: torch.rand(3, 1, 33) < 0.6,
    "queries": lambda: torch.rand(2, 1, 4, 33) < 0.6,
    "strided": lambda: (torch.rand(33, 4, 3, 2) < 0.6).permute(3, 2, 1, 0),
    "rows": lambda: torch.tensor([True, False, True, True])[:, None],
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind):
    s, mask = torch.randn(2, 3, 4, 33), MASKS[kind]()
    (p, d), (expected, slope) = both(s, 1.5, mask)
    assert float((p - expected).abs().max()) <= 3e-7
    assert float((d - slope).abs().max()) <= 1e-6
    assert not bool(p[(~mask).expand_as(p)].any())


def test_strides_and_other_axes():
    s = torch.randn(5, 40, 3)
    mask, alpha = torch.rand(40, 1) < 0.7, torch.tensor([1.2, 1.5, 1.9])
    (p, d, slope), (p64, d64, slope64) = both(s, alpha, mask, dim=1)
    torch.testing.assert_close(p.double(), p64, rtol=0, atol=3e-7)
    torch.testing.assert_close(d.double(), d64, rtol=0, atol=1e-6)
    torch.testing.assert_close(slope.double(), slope64, rtol=1e-5, atol=1e-5)
    (p, _), (p64, _) = both(torch.randn(5, 80)[:, ::2], 1.5)
    torch.testing.assert_close(p.double(), p64, rtol=0, atol=3e-7)


def test_a_row_without_keys_is_zero_and_one_with_nan_is_nan():
    s = torch.randn(4, 20, requires_grad=True)
    with torch.no_grad():
        s[1], s[2, 5] = -math.inf, math.nan
    with interpreted(), regard.checks(False):
        p = regard.entmax(s, 1.5)
        p[:2].sum().backward()
        tall = s.detach().clone()
        tall[2, 5] = math.inf
        infinite = regard.entmax(tall, 1.3)
    assert not bool(p[1].any())
    assert not bool(s.grad[1].any())
    assert bool(p[2].isnan().all())
    assert bool(infinite[2].isnan().all())
    assert not bool(p[[0, 3]].isnan().any())


@pytest.mark.parametrize("n", [20, 17000])
def test_checks_name_what_is_wrong(n):
    s = torch.zeros(2, n)
    with interpreted(), regard.checks(True):
        regard.entmax(s)
        s[1, 3] = math.nan
        with pytest.raises(ValueError, match="NaN"):
            regard.entmax(s)
        with pytest.raises(ValueError, match="alpha: got a tensor with values from -1"):
            regard.entmax(torch.zeros(2, n), torch.tensor([[1.5], [-1.0]]))


def test_one_launch_each_way_that_reads_everything_once_and_waits_for_nothing():
    s, grad = torch.randn(8, 1024, requires_grad=True), torch.randn(8, 1024)
    size = 4 * s.numel()
    for alpha, mask in ((1.5, None), (torch.full((8, 1), 1.7), None), (2.0, torch.rand(1024) < 0.5)):
        with regard.checks(False), interpreted() as counts, Waits() as waits:
            p = regard.entmax(s, alpha, mask=mask)
            forward = counts.launches, counts.read, counts.written
            p.backward(grad)
        extra = (0 if mask is None else 8 * 1024) + (32 if isinstance(alpha, torch.Tensor) else 0)
        assert forward == (1, size + extra, size)
        extra = 32 if isinstance(alpha, torch.Tensor) else 0
        assert (counts.launches, counts.read - forward[1], counts.written - size) == (2, 2 * size + extra, size + extra)
        assert waits.names == []
    with regard.checks(True), interpreted(), Waits() as waits:
        launches.entmax_forward(s.detach(), None, None, 1.5)  # inside an operator a mode sees nothing
    assert waits.names == ["aten._local_scalar_dense"]
    with regard.checks(False), interpreted(), Waits() as waits:
        launches.entmax_forward(s.detach(), None, None, 1.5)
    assert waits.names == []


def test_operators():
    s, mask = torch.randn(2, 3, 20, requires_grad=True), torch.rand(2, 1, 20) < 0.7
    with interpreted():
        for alpha in (None, torch.tensor([[1.3], [1.5], [2.0]], requires_grad=True)):
            torch.library.opcheck(entmax_triton, (s, mask, alpha, 1.5))
            p = entmax_triton(s, mask, alpha, 1.5).detach().requires_grad_()
            torch.library.opcheck(entmax_triton_backward, (p, torch.randn_like(p), alpha, 1.5))


def test_a_compiler_sees_one_node_each_way():
    graphs = []

    def noted(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    s, mask = torch.randn(4, 20, requires_grad=True), torch.rand(20) < 0.7
    with interpreted():
        compiled = torch.compile(
            lambda s: regard.entmax(s, 1.5, mask=mask),
            fullgraph=True,
            backend=aot_autograd(fw_compiler=noted, bw_compiler=noted),
        )
        p = compiled(s)
        (d,) = torch.autograd.grad(p, s, torch.ones_like(p).cumsum(-1))
        q = regard.entmax(s, 1.5, mask=mask)
        (e,) = torch.autograd.grad(q, s, torch.ones_like(p).cumsum(-1))
    torch._dynamo.reset()
    assert torch.equal(p, q)
    assert torch.equal(d, e)
    names = [[name for name in graph if "entmax" in name] for graph in graphs]
    assert names == [["regard.entmax_triton.default"], ["regard.entmax_triton_backward.default"]]


def test_the_second_derivative_is_that_of_the_plain_path():
    found = []
    x = torch.randn(3, 9)
    for dtype in (torch.float32, torch.float64):
        s, alpha = x.to(dtype).requires_grad_(), torch.tensor([[1.4]], dtype=dtype, requires_grad=True)
        with interpreted() if dtype == torch.float32 else native.switched_off():
            p = regard.entmax(s, alpha)
            first = torch.autograd.grad(p.square().sum(), (s, alpha), create_graph=True)
            found.append(torch.autograd.grad(sum(x.square().sum() for x in first), (s, alpha)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=2e-6)


def test_transforms_take_their_own_path():
    s = torch.randn(3, 9)
    with interpreted(), regard.checks(False):
        mapped = torch.func.vmap(regard.entmax)(s)
        slope = torch.func.grad(lambda s: regard.entmax(s).square().sum())(s)
        _, tangent = torch.func.jvp(regard.entmax, (s,), (torch.ones_like(s),))
    torch.testing.assert_close(mapped, regard.entmax(s), rtol=0, atol=3e-7)
    expected = torch.func.grad(lambda s: regard.entmax(s).square().sum())(s)
    torch.testing.assert_close(slope, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(tangent, torch.zeros_like(s), rtol=0, atol=1e-6)


def test_layouts_without_copies():
    x, layout = launches.broadcast_rows(torch.zeros(2, 1, 1, 7), torch.Size((2, 3, 4)))
    assert layout == (1, 12, 0, 7, 0) or x.stride() == (7, 0, 0, 1)
    assert x.data_ptr() == x.untyped_storage().data_ptr()
    turned = torch.zeros(5, 4, 3, 2, 7).permute(3, 2, 1, 0, 4)  # four strides of their own
    x, layout = launches.broadcast_rows(turned, turned.shape[:-1])
    assert x.is_contiguous()
    assert layout == (1, 120, 0, 0, 7)


def test_regard_imports_no_triton():
    code = "import sys, torch, regard; regard.entmax(torch.zeros(3)); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_works_without_triton(monkeypatch):
    from regard.gpu import _choose

    monkeypatch.setattr(_choose, "INSTALLED", False)
    with interpreted() as counts, native.switched_off(), as_on_a_device():
        p = regard.entmax(torch.randn(2, 9))
        c = regard.attend(*torch.randn(3, 1, 2, 5, 4), map="entmax")
        regard.sinkhorn(torch.randn(4, 3))
    assert counts.launches == 0
    assert bool(c.isfinite().all())
    torch.testing.assert_close(p.sum(-1), torch.ones(2))
    assert _choose.triton_kernels().startswith("off: Triton is not installed")


def test_a_row_of_a_million():
    s = torch.randn(1, 1_000_000)
    with interpreted() as counts, regard.checks(False):
        p = regard.entmax(s)
    assert counts.kernels == ["entmax_long_row"]
    with native.switched_off():
        expected = regard.entmax(s.double())
    assert float((p - expected).abs().max()) <= 3e-7


def test_warps_that_are_measured(monkeypatch):
    """With REGARD_TRITON=tune every choice runs once at the first call of a size, and later the fastest alone."""
    from regard.gpu import _choose, _row_kernels, _tune

    tried = []

    def measured(call, quantiles):
        call()
        tried.append(call)
        return [1.0 if len(tried) == 4 else 5.0] * 3

    s = torch.randn(4, 1024)
    with interpreted(), regard.checks(False):
        expected = regard.entmax(s)
    monkeypatch.setattr(_choose, "SETTING", "tune")
    monkeypatch.setattr("triton.runtime.autotuner.Autotuner.do_bench", staticmethod(measured))
    _tune._autotuner.cache_clear()
    try:
        with interpreted() as counts, regard.checks(False):
            found = [regard.entmax(s) for _ in "ab"]
            best = _tune._autotuner(_row_kernels.entmax_row, 2, 3).best_config
            assert (len(tried), counts.launches) == (9, 11)  # 2, 1 and 4 warps in 1 to 3 stages
            regard.entmax(s[:, :700])
            assert (len(tried), counts.launches) == (18, 21)
    finally:
        _tune._autotuner.cache_clear()
    assert (best.num_warps, best.num_stages) == (1, 1)
    assert all(torch.equal(p, expected) for p in found)


@pytest.mark.parametrize(("setting", "said"), [("0", "off: REGARD_TRITON=0"), ("yes", "refused: REGARD_TRITON: got")])
def test_it_can_be_switched_off(setting, said, monkeypatch):
    from regard.gpu import _choose

    monkeypatch.setattr(_choose, "SETTING", setting)
    assert _choose.triton_kernels().startswith(said)
    if setting == "0":
        with interpreted() as counts:
            regard.entmax(torch.zeros(3))
        assert counts.launches == 0
