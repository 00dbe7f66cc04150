"""The Triton kernels of attention with sparse maps, in the corrected interpreter, beside the dense one in float64."""

import math

import pytest
import torch

import regard
from regard import native

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from gpu.cases import CLOSE, MASKS, case, clustered, numbers, qkv, solved
from interpreter import interpreted
from waits import Waits

from regard.attention.triton_operator import attend_triton, attend_triton_backward
from regard.gpu import attention


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("number", [2.0, 1.5, 1.3, 1.1])
def test_dtypes_and_alphas(number, dtype):
    with interpreted():
        errors = solved(*qkv(33, 65, 24, 8, dtype=dtype), case(number, mask=MASKS["keys"](33, 65)))
        assert max(errors) <= CLOSE[dtype], errors


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 3, 5), (31, 33, 16, 16), (65, 64, 17, 33), (5, 130, 40, 3)])
def test_lengths_and_widths_that_fit_no_tile(sizes):
    with interpreted():
        assert max(solved(*qkv(*sizes), case(diagonal=sizes[1] - sizes[0]))) <= CLOSE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_approximate_functions_and_tf32(dtype):
    q, k, v = qkv(33, 65, 40, dtype=dtype)
    with interpreted(2.0**-22):
        assert max(solved(q, k, v, case(1.5))) <= CLOSE[dtype]
        assert max(solved(q, k, v, case(1.3))) <= CLOSE[dtype]
    with interpreted():
        assert max(solved(q, k, v, case(precision="tf32x3"))) <= CLOSE[dtype]
        if dtype == torch.float32:
            assert 1e-4 < max(solved(q, k, v, case(precision="tf32"))) < 3e-3  # numbers of 10 bits


def test_products_of_float32_are_as_exact_as_torch_is_told():
    """One setting for products of float32 in torch and in the kernels; exact unless it says otherwise."""
    q, k, v = qkv(20, 35, 40)  # narrower ones are exact in the second too
    errors = []
    before = torch.get_float32_matmul_precision()
    try:
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            with interpreted():
                errors.append(max(solved(q, k, v, case())))
    finally:
        torch.set_float32_matmul_precision(before)
    assert before == "highest"
    assert max(errors[:2]) <= CLOSE[torch.float32]
    assert errors[0] != errors[1]
    assert 1e-4 < errors[2] < 3e-3


BIASES = [(1, 1, 20, 35), (2, 1, 20, 35), (1, 2, 20, 35), (2, 2, 20, 35), (1, 2, 1, 35), (2, 1, 20, 1), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", BIASES)
def test_the_gradient_of_a_bias(shape):
    q, k, v = (torch.cat([x, x.flip(-2)]) for x in qkv(20, 35))
    bias = numbers(*shape, seed=13).requires_grad_()
    agree("entmax", q, k, v, bias=bias, extra=(bias,), causal=shape[0] == 2)
    with interpreted(), regard.checks(False):
        found = [torch.autograd.grad(regard.attend(q, k, v, map="entmax", bias=bias).sin().sum(), bias) for _ in "ab"]
    assert torch.equal(*(x[0] for x in found))


def test_a_learned_sink_and_a_bias_of_one_head_in_half_precision():
    q, k, v = qkv(20, 35)
    sink = torch.tensor(0.5, requires_grad=True)
    agree("entmax", q, k, v, sink=sink, extra=(sink,))
    bias = numbers(20, 35, dtype=torch.bfloat16).requires_grad_()
    agree("sparsemax", *(x.bfloat16() for x in (q, k, v)), bias=bias, extra=(bias,), close=2e-2)


@pytest.mark.parametrize(("number", "most"), [(1.5, 4.3), (2.0, 3.3), (1.3, 5.1)])
def test_products_where_nothing_can_be_skipped(number, most):
    """Of Gaussian data every tile has weight. FlashAttention: 2, and so have rows that fit in registers."""
    q, k, v = (numbers(1, 1, 512, 64, seed=n, dtype=torch.bfloat16) for n in range(3))
    with interpreted() as counts:
        result = attention.attend_forward(q, k, v, case(number, scale=1 / 8))
        assert counts.products / result.active.numel() <= most
    if number == 1.5:
        with interpreted() as counts:
            attention.attend_forward(q[..., :197, :], k[..., :197, :], v[..., :197, :], case(number, scale=1 / 8))
        assert counts.products == 2 * counts.programs


def test_one_pass_over_tiles_without_weight():
    """Of clustered data a fifth of the tiles has weight: the others are looked at once, forward, and never again."""
    q, k, v = clustered(640, groups=5, dtype=torch.bfloat16)
    grad = torch.ones_like(q)
    of = case(scale=0.5)
    with interpreted() as counts:
        result = attention.attend_forward(q, k, v, of)
        forward = counts.products
        attention.attend_backward(q, k, v, of, grad, result, False)
    tiles = result.active.numel()
    kept = float(result.active.float().mean())
    assert kept == pytest.approx(0.2)
    assert forward / tiles <= 2.3  # FlashAttention: 2
    assert (counts.products - forward) / tiles == pytest.approx(9 * kept)  # FlashAttention: 5


def run(map, q, k, v, extra=(), **options):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    c = regard.attend(*leaves, map=map, **options)
    return c.detach(), *torch.autograd.grad(c.sin().sum(), [*leaves, *extra])


def wider(x):
    """A tensor in float64, or a map or an affinity that has one; anything else as it is."""
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() else x
    if isinstance(x, regard.Entmax):
        return regard.Entmax(wider(x.alpha))
    return regard.Bilinear(wider(x.weight)) if isinstance(x, regard.Bilinear) else x


def agree(map, *tensors, extra=(), close=3e-6, **options):
    """The kernels err at most twice as much as the plain path in the same dtype, both beside float64."""
    with regard.checks(False), interpreted() as counts:
        assert "Triton" in regard.explain_attend(*tensors, map=map, **options).how
        ours = run(map, *tensors, extra, **options)
    assert counts.kernels[0] in ("attend_tile", "attend_short_rows")
    with native.switched_off():
        theirs = run(map, *tensors, extra, **options)
        options = {name: wider(x) for name, x in options.items()}
        judge = run(wider(map), *(x.double() for x in tensors), extra, **options)
    for x, y, expected in zip(ours, theirs, judge, strict=True):
        error, plain = (float((z.double() - expected).abs().max()) for z in (x, y))
        assert error <= max(2 * plain, close * (1 + float(expected.abs().max()))), (error, plain)


def test_attend():
    q, k, v = qkv(20, 35)
    agree("sparsemax", q, k, v)
    agree("entmax", q, k, v, causal=True, mask=MASKS["keys"](20, 35))
    agree("entmax", q, k, v, sink=0.5)
    agree("entmax", q, k, v, bias=numbers(2, 20, 35))
    agree(regard.Entmax(1.2), q, k, v, affinity=regard.Dot(-0.3))
    agree("entmax", q, k, v, affinity=regard.Bilinear(numbers(16, 16)))
    agree("entmax", torch.cat([q, q], 1), k, v, enable_gqa=True)
    agree("entmax", q[0, 0], k[0, 0], v[0, 0])
    agree("entmax", q.expand(3, 2, 20, 16)[:, :, None], k[:, :, None], v[:, :, None], mask=torch.ones(35).bool())


def test_alphas_of_heads_are_learned():
    q, k, v = qkv(20, 35)
    alpha = torch.tensor([1.3, 1.8]).view(2, 1, 1).requires_grad_()
    agree(regard.Entmax(alpha), q, k, v, extra=(alpha,), close=1e-5)


def test_what_it_lacks_is_said():
    q, k, v = qkv(20, 35)
    with interpreted(), regard.checks(False):
        assert "no dropout" in regard.explain_attend(q, k, v, map="entmax", dropout_p=0.1).how
        for other in (
            regard.explain_attend(q, k, v, map=regard.Entmax(2.5)),
            regard.explain_attend(q.double(), k.double(), v.double(), map="entmax"),
            regard.explain_attend(q, k, numbers(1, 2, 35, 200), map="entmax"),
        ):
            assert "Triton" not in other.how


def test_rows_without_keys_and_rows_that_are_not_finite():
    q, k, v = qkv(20, 35)
    mask = torch.ones(20, 35, dtype=torch.bool)
    mask[3] = False
    spoiled = q.clone()
    spoiled[0, 0, 5, 0] = math.nan
    with interpreted():
        with regard.checks(False):
            c, dq, *_ = run("entmax", q, k, v, mask=mask)
            assert not bool(c[:, :, 3].any())
            assert not bool(dq[:, :, 3].any())
            bad = regard.attend(spoiled, k, v, map="entmax")
            steep = regard.attend(q, k, v, map=regard.Entmax(torch.tensor([1.5, 2.5]).view(2, 1, 1)))
        with regard.checks(True), pytest.raises(ValueError, match="q: got NaN"):
            regard.attend(spoiled, k, v, map="entmax")
    assert bool(bad[0, 0, 5].isnan().all())
    assert int(bad.isnan().any(-1).sum()) == 1
    assert bool(steep[0, 1].isnan().all())
    assert not bool(steep[0, 0].isnan().any())


def test_nothing_waits():
    q, k, v = (x.detach().requires_grad_() for x in qkv(20, 35))
    alpha = torch.tensor([1.3, 1.8]).view(2, 1, 1).requires_grad_()
    with regard.checks(False), interpreted() as counts, Waits() as waits:
        regard.attend(q, k, v, map=regard.Entmax(alpha), mask=MASKS["keys"](20, 35), sink=0.5).sum().backward()
    assert waits.names == []
    assert counts.launches == 3


def test_operators_and_a_second_derivative():
    q, k, v = (x.detach().requires_grad_() for x in qkv(10, 12, 4, 3))
    alpha = torch.tensor([[1.3, 1.8]], requires_grad=True)
    mask = MASKS["keys"](10, 12)
    options = 0.0, 0.25, 12
    with interpreted(), regard.checks(False):
        torch.library.opcheck(attend_triton, (q, k, v, mask, None, alpha, *options))
        found = [x.detach() for x in attend_triton(q, k, v, mask, None, alpha, *options)]
        arguments = [x.detach() for x in (q, k, v)]
        torch.library.opcheck(
            attend_triton_backward,
            (*arguments, mask, None, alpha.detach(), *options, found[0], *found, True, False),
            test_utils=("test_schema", "test_faketensor"),
        )
        c = regard.attend(q, k, v, map=regard.Entmax(1.4))
        (d,) = torch.autograd.grad(c.square().sum(), q, create_graph=True)
        twice = torch.autograd.grad(d.square().sum(), (q, k, v))
    with native.switched_off():
        c = regard.attend(q, k, v, map=regard.Entmax(1.4))
        (d,) = torch.autograd.grad(c.square().sum(), q, create_graph=True)
        expected = torch.autograd.grad(d.square().sum(), (q, k, v))
    for ours, theirs in zip(twice, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_compiler_sees_one_node_each_way():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def noted(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if "triton" in str(node.target)])
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    q, k, v = (x.detach().requires_grad_() for x in qkv(10, 12, 4, 3))
    with interpreted():
        compiler = aot_autograd(fw_compiler=noted, bw_compiler=noted)
        attend = lambda *x: regard.attend(*x, map="entmax", causal=True)  # noqa: E731
        compiled = torch.compile(attend, fullgraph=True, backend=compiler)
        c = compiled(q, k, v)
        found = torch.autograd.grad(c.sin().sum(), (q, k, v))
        with regard.checks(False):
            expected = run("entmax", q, k, v, causal=True)
    torch._dynamo.reset()
    for x, y in zip((c.detach(), *found), expected, strict=True):
        assert torch.equal(x, y)
    assert graphs == [["regard.attend_triton.default"], ["regard.attend_triton_backward.default"]]
