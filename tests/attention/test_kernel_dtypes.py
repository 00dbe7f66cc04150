"""Attention by the native kernel in every dtype: read and written as such, computed in one that is wide enough."""

import pytest
import torch
from reference import attend as reference
from reference import maps as reference_maps

import regard
from regard import native
from regard.attention import softmax_kernel, sparse_function
from regard.native._load import VARIANTS

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")

HALVES = [torch.bfloat16, torch.float16]
MAPS = {"sparsemax": 2.0, "entmax": 1.5, "entmax-1.3": 1.3, "entmax-1.02": 1.02}
SHAPES = [(70, 41, 16, 32), (33, 197, 64, 64), (300, 130, 5, 3), (2, 1100, 24, 8)]


def inputs(dtype, lead=(2, 3), queries=70, keys=41, width=16, values=32, spread=1.5):
    torch.manual_seed(0)
    shapes = (queries, width), (keys, width), (keys, values)
    q, k, v = (torch.randn(*lead, *shape, dtype=torch.float64) for shape in shapes)
    return [x.to(dtype).requires_grad_() for x in (q * spread, k, v)]


def wide(tensors):
    return [x.detach().double().requires_grad_() for x in tensors]


@pytest.mark.parametrize("spread", [1.5, 0.1])
@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_float64_is_exact_to_its_own_rounding(shape, map, spread):
    """Against the slow twin: context and gradients."""
    leaves = inputs(torch.float64, (2, 2), *shape, spread)
    assert regard.explain_attend(*leaves, map=map).algorithm == "sparse"
    c = regard.attend(*leaves, map=map)
    expected = reference.attend(*leaves, regard.Dot(), lambda s, **more: reference_maps.entmax(s, MAPS[map], **more))
    torch.testing.assert_close(c, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(c)
    for ours, theirs in zip(*(torch.autograd.grad(x, leaves, direction) for x in (c, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


G = torch.Generator().manual_seed(1)
EXTRAS = {
    "mask": {"mask": torch.rand(2, 1, 5, 7, generator=G) < 0.7},
    "a query with no key": {"mask": (torch.arange(5) != 3).unsqueeze(-1).expand(5, 7)},
    "causal": {"causal": True},
    "upper-left": {"causal": "upper-left"},
    "none": {},
}


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
@pytest.mark.parametrize("extras", EXTRAS)
def test_float64_gradients_are_those_of_finite_differences(extras, alpha):
    """In queries, keys, values and a bias for all heads."""
    leaves = inputs(torch.float64, (2, 2), 5, 7, 3, 4)
    bias = torch.randn(2, 1, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()

    def run(q, k, v, bias):
        return regard.attend(q, k, v, map=regard.Entmax(alpha), bias=bias, **EXTRAS[extras])

    assert regard.explain_attend(*leaves, map="sparsemax", bias=bias).algorithm == "sparse"
    torch.autograd.gradcheck(run, (*leaves, bias))


def test_float64_alphas_are_learned():
    leaves = inputs(torch.float64, (2, 3), 5, 7, 3, 4)
    alpha = torch.tensor([1.05, 1.3, 1.9], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    assert regard.explain_attend(*leaves, map=regard.Entmax(alpha)).algorithm == "sparse"
    torch.autograd.gradcheck(lambda alpha, *x: regard.attend(*x, map=regard.Entmax(alpha)), (alpha, *leaves))


@pytest.mark.parametrize("room", [0, 1 << 25])
def test_float64_weights_are_computed_again_without_room_for_lists(room, monkeypatch):
    leaves = inputs(torch.float64, (2, 2), 70, 150)
    results = []
    for stored in (room, 1 << 24):
        monkeypatch.setattr(sparse_function, "STORED", stored)
        for map in MAPS:
            results += torch.autograd.grad(regard.attend(*leaves, map=map).square().sum(), leaves)
    half = len(results) // 2
    for ours, theirs in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_bias_of_float64_widens_the_computation():
    q, k, v = inputs(torch.float32)
    bias = torch.randn(70, 41, dtype=torch.float64)
    c = regard.attend(q, k, v, map="sparsemax", bias=bias)
    assert c.dtype == torch.float32
    torch.testing.assert_close(c, regard.attend(*wide((q, k, v)), map="sparsemax", bias=bias).float(), rtol=0, atol=0)


@pytest.fixture
def softmax_everywhere(monkeypatch):
    monkeypatch.setattr(softmax_kernel, "WORK", 0)
    monkeypatch.setattr(softmax_kernel, "KEYS", dict.fromkeys(VARIANTS, 2048))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("map", ["softmax", *MAPS])
@pytest.mark.parametrize("heads", [(2, 3), (1, 1)])
def test_half_precision_is_that_of_float32_rounded_once(heads, map, dtype, softmax_everywhere):
    """Bit for bit: what is read is widened, what is written rounded; with one head gradients are sums of parts."""
    leaves = inputs(dtype, heads, 300, 41)
    same = [x.detach().float().requires_grad_() for x in leaves]
    c, expected = regard.attend(*leaves, map=map), regard.attend(*same, map=map)
    assert c.dtype == dtype
    assert torch.equal(c, expected.to(dtype))
    direction = torch.randn_like(c)
    found = torch.autograd.grad(c, leaves, direction)
    for ours, theirs in zip(found, torch.autograd.grad(expected, same, direction.float()), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs.to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_with_masks_biases_groups_and_learned_alphas(dtype):
    q, k, v = inputs(dtype, (2, 4))
    k, v = (x[:, :2].detach().requires_grad_() for x in (k, v))
    bias = torch.randn(4, 70, 41, requires_grad=True)
    alpha = torch.tensor([1.2, 1.5, 1.7, 2.0]).view(4, 1, 1).requires_grad_()
    mask = torch.rand(2, 1, 1, 41, generator=torch.Generator().manual_seed(1)) < 0.7
    options = {"map": regard.Entmax(alpha), "mask": mask, "causal": True, "bias": bias, "enable_gqa": True}
    same = [x.detach().float().requires_grad_() for x in (q, k, v)]
    c, expected = regard.attend(q, k, v, **options), regard.attend(*same, **options)
    assert torch.equal(c, expected.to(dtype))
    direction = torch.randn_like(c)
    found = torch.autograd.grad(c, (q, k, v, alpha, bias), direction)
    theirs = torch.autograd.grad(expected, (*same, alpha, bias), direction.float())
    for name, ours, expected in zip(("q", "k", "v", "alpha", "bias"), found, theirs, strict=True):
        # Heads that share keys are added by torch, in half precision.
        rounding = torch.finfo(dtype).eps * float(expected.abs().max()) if name in "kv" else 0.0
        torch.testing.assert_close(ours, expected.to(ours.dtype), rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [16, 3])
def test_every_number_of_half_precision(dtype, width):
    """One key: contexts are the values, gradients of values those of contexts, whatever the bits."""
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(dtype)
    numbers = numbers[numbers.isfinite()]
    numbers = numbers[: len(numbers) // width * width].view(-1, 1, 1, width).requires_grad_()
    zeros = torch.zeros_like(numbers)
    c = regard.attend(zeros, zeros, numbers, map="sparsemax")
    assert torch.equal(c, numbers)
    (gradient,) = torch.autograd.grad(c, numbers, numbers.detach())
    assert torch.equal(gradient, numbers)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("values", [16, 3])
def test_results_are_rounded_to_nearest_even_as_torch_does(dtype, values):
    """Means of two neighbours are ties; sums of small and large ones lie anywhere."""
    torch.manual_seed(2)
    scale = 2.0 ** torch.randint(-24, 15, (4000, 1, 1, 1)).float()
    v = (torch.randn(4000, 1, 2, values) * scale).to(dtype).view(torch.int16)
    v[:2000, :, 1] = v[:2000, :, 0] + 1  # the next number
    v = v.view(dtype)
    zeros = torch.zeros(4000, 1, 2, values, dtype=dtype)
    c = regard.attend(zeros, zeros, v, map="sparsemax")
    assert torch.equal(c, v.float().mean(-2, keepdim=True).expand(c.shape).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_what_overflows_half_precision_is_infinite(dtype):
    """A gradient, as everywhere in torch."""
    q, k, v = inputs(dtype, (1, 1), 64, 1)
    c = regard.attend(q, k, v, map="sparsemax")
    largest = torch.finfo(dtype).max
    (gradient,) = torch.autograd.grad(c, v, torch.full_like(c, largest))
    assert bool((gradient == torch.inf).all())


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_is_named(place, dtype):
    tensors = inputs(dtype)
    with torch.no_grad():
        tensors[place][1, 2, 3, 2] = torch.nan
    with pytest.raises(ValueError, match=rf"^{'qkv'[place]}: got"):
        regard.attend(*tensors, map="entmax")


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_second_derivatives(dtype):
    leaves = inputs(dtype)

    def penalty(q, k, v):
        (g,) = torch.autograd.grad(regard.attend(q, k, v, map="entmax").float().square().sum(), q, create_graph=True)
        return torch.autograd.grad(g.float().square().sum(), k)[0]

    found, expected = penalty(*leaves), penalty(*wide(leaves))
    rounding = 1e-6 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=rounding * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_gradients(dtype):
    leaves = inputs(dtype)
    c = regard.attend(*leaves, map="entmax")
    directions = torch.randn(3, *c.shape, dtype=dtype)
    together = torch.autograd.grad(c, leaves, directions, is_grads_batched=True, retain_graph=True)
    for i, direction in enumerate(directions):
        alone = torch.autograd.grad(c, leaves, direction, retain_graph=True)
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[i], theirs, rtol=0, atol=1e-4)
