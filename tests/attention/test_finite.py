"""NaN and infinity never pass: at any length, in any place, layout and dtype, with every affinity, map and mask."""

import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from pretend import waits_of

import regard
from regard import _check, native
from regard.attention import range_checks

BAD = [math.nan, math.inf, -math.inf]
MAPS = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "entmax15": regard.entmax,
    "entmax13": partial(regard.entmax, alpha=1.3),
    "entmax3": partial(regard.entmax, alpha=3.0),
    "entmax05": partial(regard.entmax, alpha=0.5),
    "normmax": regard.normmax,
    "budget": regard.budget_sparsemax,
    "mean": regard.mean,
    "gate": regard.gate,
    "inverse": regard.inverse,
    "sinkhorn": regard.sinkhorn,
}
AFFINITIES = {
    "dot": lambda: regard.Dot(),
    "bilinear": lambda: regard.Bilinear(torch.eye(4)),
    "concatenation": lambda: regard.Concatenation(torch.ones(4), torch.ones(4)),
    "additive": lambda: regard.Additive(torch.ones(4)),
    "gaussian W2": lambda: regard.GaussianW2(),
    "empirical W2": lambda: regard.EmpiricalW2(),
    "histogram W1": lambda: regard.HistogramW1(torch.arange(4.0)),
}
LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 100, 197, 257, 513, 600]


@pytest.fixture(params=["kernels", "plain"])
def path(request):
    """With the native kernels, and without."""
    if request.param == "kernels" and native.library() is None:
        pytest.skip("no native kernels here: the plain path is tested")
    with native.switched_off() if request.param == "plain" else nullcontext():
        yield


def places(n):
    return sorted({0, n // 2, n - 1})


def refused(name, q, k, v, *more, **how):
    """Whether the error names the argument."""
    with pytest.raises(ValueError, match=rf"^{name}: got (NaN|an infinity), expected finite numbers"):
        regard.attend(q, k, v, *more, **how)


@pytest.mark.parametrize("lead", [(), (1, 2)])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_every_length_from_1_to_600(name, lead, path):
    """The fused kernel returns finite numbers for some of these."""
    for n in range(1, 601):
        given = {x: torch.ones(*lead, n, 4) for x in "qkv"}
        bad, place = BAD[n % 3], places(n)[n // 3 % len(places(n))]
        given[name][..., place, n % 4] = bad
        refused(name, **given)


@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("map_name", MAPS)
def test_every_pair_of_affinity_and_map(affinity, map_name, path):
    """Also where the bad number is in a key that a mask leaves out: a look at inputs costs less than one at pairs."""
    made, map_ = AFFINITIES[affinity](), MAPS[map_name]
    for turn, n in enumerate(LENGTHS if map_name == "softmax" else LENGTHS[::4]):
        keys = torch.ones(1, n, dtype=torch.bool)
        keys[0, n // 2] = n == 1
        for how in ({}, {"mask": keys}, {"causal": True}, {"mask": keys.expand(n, n)}):
            given = {x: torch.full((n, 4), 0.25) for x in "qkv"}
            name = "qkv"[turn % 3]
            given[name][places(n)[turn % len(places(n))], 1] = BAD[turn % 2]
            refused(name, **given, affinity=made, map=map_, **how)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", BAD)
def test_every_layout_and_dtype(dtype, bad, path):
    for n in LENGTHS:
        whole = torch.ones(2, n, 3, 4, 8, dtype=dtype)  # as a linear layer gives queries, keys and values of four heads
        layouts = {
            "one projection": lambda x: x.permute(2, 0, 3, 1, 4).unbind(0),
            "contiguous": lambda x: x.permute(2, 0, 3, 1, 4).contiguous().unbind(0),
            "columns": lambda x: [y.mT.contiguous().mT for y in x.permute(2, 0, 3, 1, 4).unbind(0)],
            "one for all heads": lambda x: [y[:, :1].expand(-1, 4, -1, -1) for y in x.permute(2, 0, 3, 1, 4).unbind(0)],
        }
        regard.attend(*layouts["one projection"](whole))
        for layout in layouts.values():
            for which in range(3):
                spoiled = whole.clone()
                spoiled[1, -1, which, 0, 5] = bad
                refused("qkv"[which], *layout(spoiled))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("map_name", [name for name in MAPS if name != "inverse"])
def test_scores_given_to_a_map(map_name, n, path):
    for bad in (math.nan, math.inf):
        for place in places(n):
            s = torch.zeros(3, n)
            s[1, place] = bad
            with pytest.raises(ValueError, match=r"^s: got (NaN|\+inf), expected scores below \+inf"):
                MAPS[map_name](s)
            s[2] = -math.inf
            with pytest.raises(ValueError, match=r"^s: got"):
                MAPS[map_name](s)
            part = torch.ones(3, n, dtype=torch.bool)
            part[1, place] = False
            out = MAPS[map_name](s, mask=part)  # what takes no part in a map may be anything
            out = getattr(out, "plan", out)
            assert out.isfinite().all()
            assert (out[1, place] == 0).all()


@pytest.mark.parametrize("map_name", ["softmax", "mean", "sparsemax"])
@pytest.mark.parametrize(
    ("affinity", "name"),
    [
        (regard.Bilinear(torch.full((4, 4), math.nan)), "weight"),
        (regard.Concatenation(torch.ones(4), torch.tensor([1.0, 1.0, math.inf, 1.0])), "w_k"),
        (regard.Additive(torch.full((4,), math.nan)), "v"),
        (regard.GaussianW2(torch.tensor(math.nan)), "tau"),
        (regard.Unsquared(regard.EmpiricalW2(), torch.tensor(math.nan)), "tau"),
    ],
)
def test_parameters_of_an_affinity(affinity, name, map_name):
    """By their name."""
    x = torch.full((9, 4), 0.5)
    with pytest.raises(ValueError, match=rf"^affinity\.{name}: got (NaN|an infinity)"):
        regard.attend(x, x, x, affinity, MAPS[map_name])
    with pytest.raises(ValueError, match=rf"^affinity\.{name}: got (NaN|an infinity)"):
        regard.attention_weights(x, x, affinity, MAPS[map_name])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_modules_with_weights_and_biases(need_weights, biased):
    """A bias of minus infinity masks; NaN in it, or in the values, does not pass."""
    layer = regard.nn.MultiheadAttention(8, 2, batch_first=True)
    x, bias = torch.randn(1, 5, 8), torch.randn(5, 5).masked_fill(torch.eye(5, dtype=torch.bool), -math.inf)
    how = {"need_weights": need_weights} | ({"attn_mask": bias} if biased else {})
    out, weights = layer(x, x, x, **how)
    assert out.isfinite().all()
    if need_weights and biased:
        assert (weights.diagonal(dim1=-2, dim2=-1) == 0).all()
    spoiled = x.clone()
    spoiled[0, 3, 1] = math.nan
    with pytest.raises(ValueError, match=r"^v: got NaN"):
        layer(x, x, spoiled, **how)
    if biased:
        bias[1, 2] = math.nan
        with pytest.raises(ValueError, match=r"^attn_mask: got NaN"):
            layer(x, x, x, **how)


@pytest.mark.parametrize("n", [1, 9, 64, 197])
@pytest.mark.parametrize("masked", [False, True])
def test_finite_inputs_with_scores_past_their_range(n, masked, path):
    how = {"mask": torch.ones(n, n, dtype=torch.bool)} if masked else {}
    x, v = torch.full((1, 2, n, 4), 1e25), torch.ones(1, 2, n, 4)
    for q, k in ((x, x), (x, -x)):
        with pytest.raises(ValueError, match=r"^q, k: got scores that overflow torch.float32"):
            regard.attend(q, k, v, **how)
    # Large, but not too large; and large where the bound alone cannot tell.
    one = 6e18 * torch.eye(4)[torch.arange(n) % 4].expand(1, 2, n, 4)
    for q, k in ((x, 1e-26 * x), (one, one)):
        torch.testing.assert_close(regard.attend(q, k, v, **how), torch.ones(1, 2, n, 4))


@pytest.mark.parametrize("map_name", ["softmax", "mean"])
def test_concatenation_past_its_range(map_name):
    x = torch.full((5, 4), 1e20)
    affinity = regard.Concatenation(torch.full((4,), 1e20), torch.ones(4))
    with pytest.raises(ValueError, match=r"^q, k: got scores that overflow"):
        regard.attend(x, x, torch.ones(5, 2), affinity, MAPS[map_name])


def test_scores_past_half_precision_are_computed_in_float32():
    q = torch.full((1, 1, 5, 64), 100.0, dtype=torch.float16)
    v = torch.randn(1, 1, 5, 64).half()
    c = regard.attend(q, q, v)
    assert c.dtype == torch.float16
    torch.testing.assert_close(c, v.float().mean(-2, keepdim=True).expand_as(v).half())


def test_sums_of_values_past_their_range(monkeypatch):
    """A fused kernel may divide after it has summed; a sum that was too large is never returned."""
    x, v = torch.zeros(1, 1, 64, 4), torch.full((1, 1, 64, 4), 1e38)
    with pytest.raises(ValueError, match=r"^v: got values so large that their sums overflow"):
        regard.attend(x, x, v, map=regard.gate)
    monkeypatch.setattr(
        "regard.attention.fused.scaled_dot_product_attention", lambda *_, **__: torch.full((2,), torch.inf)
    )
    with pytest.raises(ValueError, match=r"^v: got values so large"):
        regard.attend(x, x, v)


def test_a_query_without_keys_does_not_rest_on_the_kernel(monkeypatch):
    """Docs of torch define softmax there as NaN; kernels return zeros, NaN or a mean."""
    seen = []

    def kernel(q, k, v, attn_mask, **_):
        seen.append(attn_mask)
        return torch.softmax((q @ k.mT).masked_fill(~attn_mask, -math.inf), -1) @ v

    monkeypatch.setattr("regard.attention.fused.scaled_dot_product_attention", kernel)
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    c = regard.attend(q, k, v, regard.Dot(1.0), mask=mask)
    assert (c[..., 2, :] == 0).all()
    gradients = torch.autograd.grad(c.square().sum(), (q, k, v))
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][..., 2, :] == 0).all()
    assert all(bool(mask.any(-1).all()) for mask in seen)


def test_checks_can_be_switched():
    x = torch.full((2, 4), math.nan)
    with regard.checks(False):
        regard.attend(x, x, x)
        with regard.checks(True), pytest.raises(ValueError, match="q: got NaN"):
            regard.attend(x, x, x)
        with regard.checks(None), pytest.raises(ValueError, match="q: got NaN"):
            regard.attend(x, x, x)


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("how", ["", "mask", "causal"])
def test_a_gpu_waits_for_no_check(map_name, how):
    """Counted on a pretended device: by default exactly as many readings as without any check, with checks more."""
    q, k, v = (torch.rand(2, 3, 9, 4) for _ in range(3))
    more = {"": {}, "mask": {"mask": torch.ones(9, 9, dtype=torch.bool)}, "causal": {"causal": True}}[how]
    affinity = regard.GaussianW2() if map_name == "inverse" else regard.Dot()

    def run(q, k, v):
        return regard.attend(q, k, v, affinity, MAPS[map_name], **more)

    waits, out = waits_of(run, q, k, v)
    with regard.checks(False):
        bare, _ = waits_of(run, q, k, v)
    with regard.checks(True):
        checked, _ = waits_of(run, q, k, v)
    assert waits == bare < checked
    if map_name in ("softmax", "mean", "gate", "inverse"):
        assert waits == 0
    torch.testing.assert_close(out, run(q, k, v))


def test_by_default_a_gpu_is_not_checked_and_says_so_when_asked():
    x = torch.full((1, 1, 3, 4), math.nan)
    waits_of(regard.attend, x, x, x)
    with regard.checks(True), pytest.raises(ValueError, match="q: got NaN"):
        waits_of(regard.attend, x, x, x)


def test_tensors_without_values_are_not_read():
    x = torch.zeros(2, 3, 9, 4, device="meta")
    for map_ in (regard.softmax, regard.mean, regard.gate):
        assert regard.attend(x, x, x, map=map_).shape == (2, 3, 9, 4)
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.zeros(2, 3, 9, 4)
        assert not _check.readable(x)
        assert range_checks.largest("x", x) == 0
        assert regard.attend(x, x, x).shape == (2, 3, 9, 4)
