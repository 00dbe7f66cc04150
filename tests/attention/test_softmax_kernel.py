"""Softmax by the native kernel, gradients of biases by it for every map, and tensors in any layout."""

import math

import pytest
import torch
from reference import attend as reference
from reference import maps as reference_maps

import regard
from regard import native
from regard.attention import softmax_kernel
from regard.native._load import VARIANTS

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """The kernel also where it is not worth it: small calls, narrow registers."""
    monkeypatch.setattr(softmax_kernel, "WORK", 0)
    monkeypatch.setattr(softmax_kernel, "KEYS", dict.fromkeys(VARIANTS, 2048))


def inputs(lead=(2, 3), queries=70, keys=41, width=16, values=32, spread=1.0):
    torch.manual_seed(0)
    shapes = (queries, width), (keys, width), (keys, values)
    q, k, v = (torch.randn(*lead, *shape) for shape in shapes)
    return [x.requires_grad_() for x in (q * spread, k, v)]


def differences(found, expected):
    """The largest differences, relative to the largest numbers that are expected, or to one where these cancel."""
    pairs = [(x.detach(), y.detach()) for x, y in zip(found, expected, strict=True)]
    return [float((x - y).abs().max() / y.abs().max().clamp_min(1.0)) for x, y in pairs]


@pytest.mark.parametrize("spread", [8.0, 1.0, 0.0])
@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (70, 49, 32, 32), (197, 197, 64, 64), (65, 1030, 16, 48)])
def test_softmax_is_as_exact_as_the_obvious_program(shape, spread):
    """At most twice the error of scores, softmax, product in float32, forward and backward."""
    leaves = inputs((2, 2), *shape, spread)
    assert regard.explain_attend(*leaves).how == "scores in the cache"
    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    c = regard.attend(*leaves)
    naive = torch.softmax(leaves[0] @ leaves[1].mT / shape[2] ** 0.5, -1) @ leaves[2]
    exact = reference.attend(*exact_leaves, regard.Dot(), reference_maps.softmax)
    direction = torch.randn_like(c)
    found, rounded, expected = (
        [y, *torch.autograd.grad(y, x, direction.to(y.dtype))]
        for y, x in ((c, leaves), (naive, leaves), (exact, exact_leaves))
    )
    for ours, theirs in zip(differences(found, expected), differences(rounded, expected), strict=True):
        assert ours <= 2 * theirs + 2e-6


G = torch.Generator().manual_seed(1)
EXTRAS = {
    "mask of keys": {"mask": torch.rand(2, 1, 1, 41, generator=G) < 0.7},
    "mask of pairs": {"mask": torch.rand(70, 41, generator=G) < 0.7},
    "a query with no key": {"mask": (torch.arange(70) != 5).unsqueeze(-1).expand(70, 41)},
    "causal": {"causal": True},
    "upper-left": {"causal": "upper-left"},
    "bias of pairs": {"bias": torch.randn(70, 41, generator=G)},
    "bias, mask and causal": {
        "bias": torch.randn(2, 1, 1, 41, generator=G),
        "mask": torch.rand(41, generator=G) < 0.7,
        "causal": True,
    },
    "bias of -inf": {"bias": torch.where(torch.arange(41) < 30, 0.0, -math.inf)},
    "infinity behind a mask": {
        "bias": torch.where(torch.arange(41) < 30, 0.0, -math.inf),
        "mask": torch.arange(41) < 35,
    },
}


@pytest.mark.parametrize("kind", EXTRAS)
def test_softmax_with_masks_and_biases(kind, plain):
    q, k, v = inputs()
    run = lambda: regard.attend(q, k, v, **EXTRAS[kind])  # noqa: E731
    assert regard.explain_attend(q, k, v, **EXTRAS[kind]).how == "scores in the cache"
    c, dense = run(), plain(run)
    direction = torch.randn_like(c)
    found, expected = ([x, *torch.autograd.grad(x, (q, k, v), direction)] for x in (c, dense))
    assert max(differences(found, expected)) < 1e-5


SHAPES = [
    (41,),
    (1,),
    (70, 1),
    (1, 41),
    (70, 41),
    (3, 1, 41),
    (3, 70, 41),
    (2, 1, 70, 41),
    (2, 3, 70, 41),
    (2, 1, 1, 1),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.0, -0.5])
@pytest.mark.parametrize("map", ["softmax", "sparsemax", "entmax-1.3"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_a_bias_of_any_shape(shape, map, scale, causal, plain):
    """Summed over all heads and queries that share a number."""
    q, k, v = inputs(spread=1.5)
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_()
    leaves, affinity = (q, k, v, bias), regard.Dot(scale)
    run = lambda: regard.attend(q, k, v, affinity, map, bias=bias, causal=causal)  # noqa: E731
    plan = regard.explain_attend(q, k, v, affinity, map, bias=bias, causal=causal)
    assert plan.algorithm == ("fused" if map == "softmax" else "sparse")
    c, dense = run(), plain(run)
    direction = torch.randn_like(c)
    found, expected = (torch.autograd.grad(x, leaves, direction) for x in (c, dense))
    assert found[3].shape == bias.shape
    assert max(differences(found, expected)) < 3e-4  # one number for all pairs has a gradient of 17,000 that cancel


@pytest.mark.parametrize("keys", [41, 300])
@pytest.mark.parametrize("spread", [3.0, 0.1])
def test_the_gradient_of_a_bias_from_lists_and_from_all_weights(spread, keys, plain):
    """Few weights are lists, many are computed again; long rows and short ones go different ways."""
    q, k, v = inputs((4, 2), 300, keys, 16, 16, spread)
    bias = torch.zeros(2, 300, keys, requires_grad=True)
    run = lambda: torch.autograd.grad(regard.attend(q, k, v, map="sparsemax", bias=bias).square().sum(), bias)[0]  # noqa: E731
    found, expected = run(), plain(run)
    wrong = (found - expected).abs() > 1e-4 * expected.abs().max()
    assert float(wrong.float().mean()) < 1e-3  # a key at the edge of a support may be in for one and out for the other


@pytest.mark.parametrize("map", ["softmax", "sparsemax"])
def test_the_gradient_of_a_bias_has_the_same_bits_for_every_number_of_threads(map):
    q, k, v = inputs((5, 3), 300, 60)
    bias = torch.zeros(3, 300, 60, requires_grad=True)

    def run(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return torch.autograd.grad(regard.attend(q, k, v, map=map, bias=bias).square().sum(), (q, k, v, bias))
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(x, y) for x, y in zip(run(1), run(3), strict=True))


LAYOUTS = {
    "heads side by side": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a wider row": lambda x: torch.cat([x, x, x], -1).narrow(-1, x.shape[-1], x.shape[-1]),
    "one head for all": lambda x: x[:, :1].expand(x.shape),
    "columns": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("map", ["softmax", "sparsemax", "entmax-1.3"])
@pytest.mark.parametrize("keys", [41, 130])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_bits(layout, keys, map):
    leaves = inputs(keys=keys)
    if layout == "one head for all":
        leaves = [x[:, :1].expand(x.shape).detach().clone().requires_grad_() for x in leaves]
    other = [LAYOUTS[layout](x) for x in leaves]
    c, same = regard.attend(*leaves, map=map), regard.attend(*other, map=map)
    assert torch.equal(c, same)
    direction = torch.randn_like(c)
    expected = torch.autograd.grad(c, leaves, direction)
    found = torch.autograd.grad(same, other, LAYOUTS[layout](direction))
    assert layout == "one head for all" or all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_the_context_has_the_layout_of_the_queries():
    """So that the heads of a query, joined, are no copy."""
    q, k, v = (LAYOUTS["heads side by side"](x) for x in inputs(values=16))
    for map_ in ("softmax", "sparsemax"):
        c = regard.attend(q, k, v, map=map_)
        assert c.transpose(1, 2).is_contiguous()
        assert all(x.transpose(1, 2).is_contiguous() for x in torch.autograd.grad(c.sum(), (q, k, v)))


def test_places_of_more_keys_than_two_bytes_can_number(plain):
    q, k, v = inputs((1, 1), 3, 66_000, 4, 4, 8.0)
    run = lambda: torch.autograd.grad(regard.attend(q, k, v, map="sparsemax").square().sum(), (q, k, v))  # noqa: E731
    assert regard.explain_attend(q, k, v, map="sparsemax").algorithm == "sparse"
    assert max(differences(run(), plain(run))) < 1e-4


def test_what_is_not_needed_of_the_room_for_supports_is_given_back():
    q, k, v = inputs((2, 3), 200, 200, 16, 16, 8.0)
    c = regard.attend(q, k, v, map="sparsemax")
    place, weight = c.grad_fn.supports[-2:]
    listed = int(c.grad_fn.supports[1].sum())
    assert listed <= len(weight) == len(place) < 0.25 * 6 * 200 * 200
    assert weight.untyped_storage().nbytes() == 4 * len(weight)


@pytest.mark.parametrize("map", ["softmax", "entmax"])
def test_second_derivatives(map):
    q, k, v = inputs()
    bias = torch.zeros(70, 41, requires_grad=True)

    def penalty():
        c = regard.attend(q, k, v, map=map, bias=bias)
        (g,) = torch.autograd.grad(c.square().sum(), bias, create_graph=True)
        return torch.autograd.grad(g.square().sum(), v)[0]

    assert max(differences([penalty()], [reference_penalty(q, k, v, bias, map)])) < 1e-3


def reference_penalty(q, k, v, bias, map):
    """The same by scores, map and product in float64."""
    q, k, v, bias = (x.detach().double().requires_grad_() for x in (q, k, v, bias))
    c = getattr(regard, map)(q @ k.mT / q.shape[-1] ** 0.5 + bias) @ v
    (g,) = torch.autograd.grad(c.square().sum(), bias, create_graph=True)
    return torch.autograd.grad(g.square().sum(), v)[0].float()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bias", [None, torch.zeros(41)])
def test_softmax_names_what_is_not_finite(place, wrong, bias):
    tensors = inputs()
    with torch.no_grad():
        tensors[place][1, 2, 3, 2] = wrong
    with pytest.raises(ValueError, match=rf"^{'qkv'[place]}: got"):
        regard.attend(*tensors, bias=bias)


def test_what_overflows_is_an_error():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="overflow"):
        regard.attend(q * 1e30, k * 1e30, v)


def test_small_calls_and_narrow_registers_go_to_torch(monkeypatch):
    q, k, v = inputs()
    monkeypatch.setattr(softmax_kernel, "WORK", 1 << 30)
    assert "scaled_dot_product_attention" in regard.explain_attend(q, k, v).how
    monkeypatch.setattr(softmax_kernel, "WORK", 0)
    monkeypatch.setattr(softmax_kernel, "KEYS", {})
    assert "scaled_dot_product_attention" in regard.explain_attend(q, k, v).how
