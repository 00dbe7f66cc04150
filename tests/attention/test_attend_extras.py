"""What one knows from scaled_dot_product_attention: a bias, dropout, grouped queries, two ways to be causal."""

import math
from functools import partial

import pytest
import torch
from attention.cases import AFFINITIES, MAPS, make_affinity, make_inputs, parameters
from reference import attend as reference
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import Bilinear, Dot, Sinkhorn, attend, attention_weights, explain_attend, native
from regard.attention.call import Call
from regard.attention.grouped_queries import GroupedQueries
from regard.nn import Entmax

OTHERS = {
    "gate": regard.gate,
    "tvmax": partial(regard.tvmax, gamma=0.2, shape=(3, 3)),
    "sinkhorn": Sinkhorn(iterations=20),
}


def make_bias(shape, left_out=True):
    bias = torch.randn(shape, dtype=torch.float64)
    return bias.masked_fill(torch.rand(shape) < 0.2, -math.inf) if left_out and bias.dim() else bias


# The bias


@pytest.mark.parametrize("shape", [(), (9,), (1, 9), (6, 1), (6, 9), (2, 6, 9), (2, 1, 9)])
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("blocks", [False, True])
def test_bias_of_any_shape_equals_the_obvious_program(shape, map_name, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = MAPS[map_name]
    q, k, v = (x.requires_grad_() for x in make_inputs())
    bias = make_bias(shape).requires_grad_()
    got, expected = (
        attend(q, k, v, map=ours, bias=bias),
        reference.attend(q, k, v, Dot(), obvious, bias=bias.expand(2, 6, 9)),
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v, bias), direction) for x in (got, expected)), strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["none", "keys", "pairs", "causal", "upper-left"])
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
@pytest.mark.parametrize("blocks", [False, True])
def test_every_pair_with_bias_and_mask(name, map_name, kind, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = MAPS[map_name]
    q, k, v = (x.requires_grad_() for x in make_inputs())
    affinity, bias = make_affinity(name, 4), make_bias((6, 9)).requires_grad_()
    for x in parameters(affinity):
        x.requires_grad_()
    lower, upper = reference.causal_mask(6, 9), torch.ones(6, 9, dtype=torch.bool).tril()
    keys = (torch.rand(2, 1, 9) < 0.7).index_fill(0, torch.tensor([1]), False)
    pairs = torch.rand(2, 6, 9) < 0.7
    how, mask = {
        "none": ({}, None),
        "keys": ({"mask": keys}, keys),
        "pairs": ({"mask": pairs}, pairs),
        "causal": ({"causal": True, "mask": keys}, keys & lower),
        "upper-left": ({"causal": "upper-left"}, upper),
    }[kind]
    got = attend(q, k, v, affinity, ours, bias=bias, **how)
    expected = reference.attend(q, k, v, affinity, obvious, mask, bias)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(attention_weights(q, k, affinity, ours, bias=bias, **how) @ v, expected)
    leaves = [q, k, v, bias, *parameters(affinity)]
    for g, e in zip(*(torch.autograd.grad(x.sin().sum(), leaves) for x in (got, expected)), strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("map_name", [*MAPS, *OTHERS])
def test_minus_infinity_leaves_a_key_out(map_name):
    map_ = OTHERS[map_name] if map_name in OTHERS else MAPS[map_name][0]
    q, k, v = make_inputs()
    mask = torch.ones(9, dtype=torch.bool) if map_name == "sinkhorn" else torch.rand(9) < 0.7
    bias = torch.zeros(9, dtype=torch.float64).masked_fill(~mask, -math.inf)
    torch.testing.assert_close(attend(q, k, v, map=map_, bias=bias), attend(q, k, v, map=map_, mask=mask[None]))


@pytest.mark.parametrize("map_name", MAPS)
def test_gradcheck_of_the_bias(map_name, small_blocks):
    q, k, v = (x.requires_grad_() for x in make_inputs(9, 9, lead=()))
    bias = make_bias((9, 9)).requires_grad_()
    run = lambda q, k, v, bias: attend(q, k, v, map=MAPS[map_name][0], bias=bias, causal=True)  # noqa: E731
    assert explain_attend(q, k, v, map=MAPS[map_name][0], bias=bias).rows is not None
    assert gradcheck(run, (q, k, v, bias), fast_mode=True)


def test_second_derivatives_of_a_bias_in_blocks(monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 12)
    q, k, v = (x.requires_grad_() for x in make_inputs(3, 4, 2, 2, lead=()))
    bias = make_bias((3, 4), left_out=False).requires_grad_()
    assert gradgradcheck(lambda *x: attend(*x[:3], map=regard.entmax, bias=x[3]), (q, k, v, bias))


@pytest.mark.parametrize("blocks", [False, True])
def test_a_row_of_minus_infinities_gives_zeros_and_zero_gradients(blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    for map_, _ in MAPS.values():
        q, k, v = (x.requires_grad_() for x in make_inputs())
        bias = make_bias((2, 6, 9), left_out=False).index_fill(1, torch.tensor([2]), -math.inf).requires_grad_()
        c = attend(q, k, v, map=map_, bias=bias)
        grads = torch.autograd.grad(c.sin().sum(), (q, k, v, bias))
        assert (c[:, 2] == 0).all()
        assert (grads[0][:, 2] == 0).all()
        assert (grads[3][:, 2] == 0).all()
        assert all(g.isfinite().all() for g in grads)


def test_a_row_of_minus_infinities_does_not_rest_on_the_kernel(monkeypatch):
    """Some kernels give zeros there, others NaN: none is asked."""
    seen = []

    def kernel(q, k, v, attn_mask, **_):
        seen.append(attn_mask)
        return torch.softmax(q @ k.mT + attn_mask, -1) @ v

    monkeypatch.setattr("regard.attention.fused.scaled_dot_product_attention", kernel)
    q, k, v = make_inputs()
    bias = make_bias((6, 9), left_out=False).index_fill(0, torch.tensor([2]), -math.inf)
    for how in ({"bias": bias}, {"bias": bias[:1], "mask": bias[:, :1] > -math.inf}):
        c = attend(q, k, v, Dot(1.0), **how)
        assert (c[:, 2] == 0).all()
        assert (c[:, :2] != 0).all()
        assert (seen[-1].amax(-1) > -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ["some", "all"])
def test_the_lowest_number_is_a_number(dtype, rows):
    """As transformers mask: a row of nothing but the lowest number is not one without keys.

    Beside such a number scores are lost in rounding, so that they are equal; but half precision is computed in more.
    """
    q, k, v = make_inputs(lead=(2, 3), dtype=dtype)
    bias = torch.zeros(6, 9, dtype=dtype)
    bias[:, 5:] = torch.finfo(dtype).min
    if rows == "all":
        bias[2] = torch.finfo(dtype).min
    for map_ in (regard.softmax, regard.sparsemax):
        c = attend(q, k, v, map=map_, bias=bias).float()
        seen = attend(q, k[..., :5, :], v[..., :5, :], map=map_).float()
        if rows == "all":
            equal = dtype != torch.float16
            seen[..., 2, :] = v.float().mean(-2) if equal else attend(q, k, v, map=map_)[..., 2, :].float()
        for i in range(6):
            expected = seen[..., i, :]
            torch.testing.assert_close(c[..., i, :], expected, rtol=2e-2, atol=2e-2)


def test_scores_beside_a_huge_bias_are_looked_at():
    """The bound on the scores says nothing there; the scores themselves fit, or they do not."""
    x, v = torch.full((1, 1, 3, 4), 1e17), torch.ones(1, 1, 3, 4)
    bias = torch.full((3, 3), torch.finfo(torch.float32).min)
    torch.testing.assert_close(attend(x, x, v, bias=bias), v)
    with pytest.raises(ValueError, match=r"^q, k: got scores that overflow"):
        attend(x, -x, v, bias=bias)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_a_wider_bias_makes_the_computation_wider(wide):
    q, k, v = make_inputs(lead=(2, 3), dtype=torch.float16)
    bias = torch.randn(6, 9, dtype=wide).masked_fill(torch.rand(6, 9) < 0.5, -1e9)
    for map_ in (regard.softmax, regard.sparsemax):
        c = attend(q, k, v, map=map_, bias=bias)
        expected = attend(q.to(wide), k.to(wide), v.to(wide), map=map_, bias=bias)
        assert c.dtype == torch.float16
        torch.testing.assert_close(c, expected.half())
        assert attention_weights(q, k, map=map_, bias=bias).dtype == torch.float16


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_nan_and_plus_infinity_in_a_bias_are_refused(name, map_name, left_out, bad):
    q, k, v = make_inputs()
    bias = torch.zeros(6, 9, dtype=torch.float64)
    bias[3, 4] = bad
    bias[3, 5] = -math.inf if left_out else 0.0
    affinity, map_ = make_affinity(name, 4), MAPS[map_name][0]
    for run in (partial(attend, q, k, v), partial(attention_weights, q, k)):
        with pytest.raises(ValueError, match=r"^bias: got (NaN|\+inf), expected numbers below \+inf"):
            run(affinity, map_, bias=bias)


# Dropout


@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax, Sinkhorn(iterations=5), Entmax(1)])
@pytest.mark.parametrize("blocks", [False, True])
def test_dropout_has_the_expectation_and_the_gradient_of_what_it_dropped(map_, blocks, monkeypatch):
    """Blocks draw the same numbers again for the gradient, and leave the generator where the forward pass left it."""
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 12 if blocks else 1 << 21)
    q, k, v = (x.requires_grad_() for x in make_inputs(5, 6, 3, 2, lead=(1,)))
    bias = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    blocked = explain_attend(q, k, v, map=map_, dropout_p=0.4).rows is not None
    assert blocked == (blocks and not isinstance(map_, Sinkhorn))

    def run(q, k, v, bias):
        torch.manual_seed(5)
        return attend(q, k, v, map=map_, bias=bias, dropout_p=0.4)

    assert gradcheck(run, (q, k, v, bias), fast_mode=True)
    c = run(q, k, v, bias)
    after = torch.get_rng_state()
    c.sum().backward()
    assert torch.equal(after, torch.get_rng_state())
    many = torch.stack([attend(q, k, v, map=map_, bias=bias, dropout_p=0.4) for _ in range(200)]).detach()
    expected = attend(q, k, v, map=map_, bias=bias).detach()
    assert ((many.mean(0) - expected).abs() <= 5 * many.std(0) / math.sqrt(len(many)) + 1e-9).all()
    assert (many[0] != many[1]).any()


def test_second_derivatives_of_what_was_dropped(monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 12)
    q, k, v = (x.requires_grad_() for x in make_inputs(3, 4, 2, 2, lead=()))

    def run(q, k, v):
        torch.manual_seed(5)
        return attend(q, k, v, map=regard.entmax, dropout_p=0.4)

    assert gradgradcheck(run, (q, k, v))


# Grouped queries


def cases():
    torch.manual_seed(2)
    keys, pairs = torch.rand(2, 1, 1, 9) < 0.8, torch.rand(2, 6, 6, 9) < 0.8
    pairs[..., 0] = True
    bias = torch.randn(6, 6, 9, dtype=torch.float64, requires_grad=True)
    return {
        "plain": {},
        "keys": {"mask": keys},
        "pairs": {"mask": pairs},
        "one for all heads": {"mask": pairs[:, :1]},
        "causal": {"causal": True},
        "bias": {"bias": bias},
        "bias of keys": {"bias": bias[0, 0]},
    }


GROUPED = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "mean": regard.mean,
    "sinkhorn": Sinkhorn(iterations=5),
    "alpha of each head": Entmax(6),
    "alpha in a tensor": partial(regard.entmax, alpha=torch.linspace(1.2, 1.9, 6).double().view(6, 1, 1)),
}


NOT_FOR_PLANS = ("keys", "pairs", "one for all heads", "causal")  # a plan needs all keys


@pytest.mark.parametrize(
    ("map_name", "kind"), [(m, k) for m in GROUPED for k in cases() if m != "sinkhorn" or k not in NOT_FOR_PLANS]
)
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_grouped_queries_equal_repeated_keys(heads, map_name, kind):
    map_, how = GROUPED[map_name], cases()[kind]
    map_ = map_.double() if isinstance(map_, torch.nn.Module) else map_
    (q, _, _), (_, k, v) = make_inputs(lead=(2, 6)), make_inputs(lead=(2, heads))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    keys, values = (reference.repeated(x, 6 // heads) for x in (k, v))
    got, expected = attend(q, k, v, map=map_, enable_gqa=True, **how), attend(q, keys, values, map=map_, **how)
    torch.testing.assert_close(got, expected)
    grads = [torch.autograd.grad(x.sin().sum(), leaves) for x in (got, expected)]
    torch.testing.assert_close(grads[0], grads[1])
    p = attention_weights(q, k, map=map_, enable_gqa=True, **how)
    torch.testing.assert_close(p, attention_weights(q, keys, map=map_, **how))


def test_grouped_queries_with_a_weight_for_each_head_and_against_torch():
    (q, _, _), (_, k, v) = make_inputs(lead=(2, 6)), make_inputs(lead=(2, 3))
    affinity = Bilinear(torch.randn(6, 4, 4).double())
    keys, values = (reference.repeated(x, 2) for x in (k, v))
    torch.testing.assert_close(attend(q, k, v, affinity, enable_gqa=True), attend(q, keys, values, affinity))
    torch.testing.assert_close(
        attend(q, k, v, causal="upper-left", enable_gqa=True),
        scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    )


def test_grouped_queries_copy_keys_only_where_they_must():
    (q, _, _), (_, k, v) = make_inputs(lead=(2, 6)), make_inputs(lead=(2, 3))

    def parts(causal=False, affinity=Dot(), map_=regard.sparsemax):  # noqa: B008
        return GroupedQueries.of(Call.of(q, k, v, affinity, map_, causal=causal, enable_gqa=True)).parts

    for calls in (parts(), parts(causal="upper-left"), parts(map_=Sinkhorn())):
        assert all(p.k is k and p.v is v for p in calls)
        assert all(p.q.untyped_storage().data_ptr() == q.untyped_storage().data_ptr() for p in calls)
    assert parts()[0].batch == parts(causal=True)[1].batch == (2, 3)
    assert parts(map_=Entmax(6))[0].batch == (2, 6)
    assert parts(map_=Entmax(6))[0].k.shape == (2, 6, 9, 4)
    assert parts(affinity=Bilinear(torch.randn(6, 4, 4)))[0].k.shape == (2, 6, 9, 4)
    assert "2 times, once for each head of a group" in str(explain_attend(q, k, v, causal=True, enable_gqa=True))
    assert "the 2 heads of a group as one" in str(explain_attend(q, k, v, enable_gqa=True))
    assert explain_attend(q, q, q, enable_gqa=True) == explain_attend(q, q, q)
    assert attend(q, k, v[..., :0], enable_gqa=True).shape == (2, 6, 6, 0)


# Causal


@pytest.mark.parametrize(("lq", "lk"), [(1, 9), (9, 1), (5, 9), (9, 5), (7, 7)])
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("blocks", [False, True])
def test_two_ways_to_be_causal(lq, lk, map_name, blocks, request):
    """Upper-left is torch's; lower-right is True's, in which the last query sees all."""
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = MAPS[map_name]
    q, k, v = make_inputs(lq, lk)
    upper, lower = torch.ones(lq, lk, dtype=torch.bool).tril(), reference.causal_mask(lq, lk)
    for causal, mask in (("upper-left", upper), ("lower-right", lower), (True, lower)):
        expected = reference.attend(q, k, v, Dot(), obvious, mask)
        torch.testing.assert_close(attend(q, k, v, map=ours, causal=causal), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention_weights(q, k, map=ours, causal=causal) @ v, expected)
    if map_name == "softmax":
        torch.testing.assert_close(
            attend(q, k, v, causal="upper-left"), scaled_dot_product_attention(q, k, v, is_causal=True)
        )


@pytest.mark.skipif(native.library() is None, reason="no native kernels here")
def test_upper_left_in_the_sparse_kernel(plain):
    q, k, v = make_inputs(600, 700, 8, lead=(), dtype=torch.float32)
    run = lambda: attend(q, k, v, Dot(1.0), regard.sparsemax, causal="upper-left")  # noqa: E731
    assert explain_attend(q, k, v, map=regard.sparsemax, causal="upper-left").algorithm == "sparse"
    torch.testing.assert_close(run(), plain(run), rtol=0, atol=1e-5)


# The plan, and complaints


@pytest.mark.parametrize(
    ("name", "map_", "how", "algorithm"),
    [
        ("dot", regard.softmax, {"bias": torch.zeros(3000)}, "fused"),
        ("dot", regard.softmax, {"bias": torch.zeros(3000, 3000)}, "fused blocks"),
        ("dot", regard.softmax, {"bias": torch.zeros(1, 3000).requires_grad_()}, "fused blocks"),
        ("dot", regard.softmax, {"causal": "upper-left"}, "fused"),
        ("dot", regard.softmax, {"dropout_p": 0.1}, "blocks"),
        ("dot", regard.mean, {"bias": torch.zeros(3000)}, "blocks"),
        ("dot", regard.mean, {"dropout_p": 0.1}, "blocks"),
        ("concatenation", regard.softmax, {"bias": torch.zeros(3000)}, "blocks"),
        ("concatenation", regard.mean, {"dropout_p": 0.1}, "blocks"),
    ],
)
def test_the_plan(name, map_, how, algorithm):
    q, k, v = make_inputs(3000, 3000)
    plan = explain_attend(q, k, v, make_affinity(name, 4), map_, **how)
    assert plan.algorithm == algorithm
    assert "bias" not in how or algorithm != "fused blocks" or "because of the bias" in plan.how


@pytest.mark.skipif(native.library() is None, reason="no native kernels here")
def test_the_plan_says_what_the_sparse_kernel_lacks():
    q, k, v = make_inputs(600, 600, dtype=torch.float32)
    plan = explain_attend(q, k, v, map=regard.sparsemax, dropout_p=0.1)
    assert plan.algorithm == "direct"
    assert "because the sparse kernel has no dropout" in plan.how


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mask": torch.zeros(6, 9)}, TypeError, r"^mask: got torch.float32, .* Pass it as bias"),
        ({"mask": torch.zeros(6, 9).long()}, TypeError, r"^mask: got torch.int64, .* Use mask.bool\(\)"),
        ({"bias": torch.ones(9, dtype=torch.bool)}, TypeError, r"^bias: got torch.bool, .* as mask"),
        ({"bias": 1.0}, TypeError, r"^bias: got float"),
        ({"bias": torch.zeros(9, 6)}, ValueError, r"^bias: got shape \(9, 6\), .* \(2, 6, 9\)"),
        ({"dropout_p": 1.0}, ValueError, r"^dropout_p: got 1.0"),
        ({"dropout_p": -0.1}, ValueError, r"^dropout_p: got -0.1"),
        ({"causal": "left"}, ValueError, r"^causal: got 'left', expected one of False, True, 'upper-left'"),
        ({"q": torch.zeros(4, 6, 4)}, ValueError, r"^q, k, v: got q \(4, 6, 4\), .* pass enable_gqa=True"),
        ({"q": torch.zeros(3, 6, 4)}, ValueError, r"^q, k, v: got q \(3, 6, 4\), .* with unsqueeze"),
        ({"q": torch.zeros(3, 6, 4), "enable_gqa": True}, ValueError, r"^q, k, v: .* a multiple of them"),
        ({"q": torch.zeros(4, 6, 4), "v": torch.zeros(1, 9, 3), "enable_gqa": True}, ValueError, r"same heads"),
        (
            {"q": torch.zeros(4, 6, 4), "mask": torch.ones(3, 6, 9, dtype=torch.bool), "enable_gqa": True},
            ValueError,
            r"^mask: got shape \(3, 6, 9\), .* \(4, 6, 9\)",
        ),
    ],
)
@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax])
def test_bad_input_is_named(change, error, message, map_):
    given = {"q": torch.zeros(2, 6, 4), "k": torch.zeros(2, 9, 4), "v": torch.zeros(2, 9, 3), "map": map_} | change
    with pytest.raises(error, match=message):
        attend(**given)


def test_a_float_mask_for_a_map_is_added_to_the_scores():
    with pytest.raises(TypeError, match=r"^mask: got torch.float32, .* Add it to the scores"):
        regard.softmax(torch.zeros(3), mask=torch.zeros(3))
