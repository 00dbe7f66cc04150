"""Pooling and self-attention against integrals on a fine grid."""

import importlib
from functools import partial

import pytest
import torch
from reference import continuous_nn as reference
from torch import nn

from benchmarks.harness import peak_memory
from regard import continuous as C
from regard.nn import ContinuousAttentionPool, ContinuousSelfAttention

BASES = {
    "gaussian": (C.GaussianBasis.on_line(4), C.GaussianBasis.on_grid(3, 4)),
    "paraboloid": (C.ParaboloidBasis.on_line(4), C.ParaboloidBasis.on_grid(3, 4)),
    "fourier": (C.FourierBasis.on_line(4), C.FourierBasis.on_grid(3, 4)),
}
WHERE = [7, (4, 5)]
FITS = {
    "one": C.match_moments,
    "paraboloid": partial(C.match_moments, alpha=2),
    "two": partial(C.fit_mixture, components=2),
    "sparse": partial(C.fit_mixture, components=3, mixing="sparsemax"),
    "selected": partial(C.select_mixture, max_components=3, iterations=5),
}


def locations(where):
    return C.line(where) if isinstance(where, int) else C.grid(*where)


def switched_on(module):
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    return module.double()


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("alpha", [1, 2])
def test_pool_is_the_integral(dimensions, basis, alpha):
    where, basis = WHERE[dimensions - 1], BASES[basis][dimensions - 1]
    pool = switched_on(ContinuousAttentionPool(3, where, basis, partial(C.match_moments, alpha=alpha)))
    x = torch.randn(2, len(locations(where)), 3, dtype=torch.float64)
    context, density, weights = pool(x)
    p = torch.softmax(pool.score(x).squeeze(-1), -1)
    torch.testing.assert_close(density.mean, p @ locations(where).points)
    torch.testing.assert_close((weights.unsqueeze(-2) @ x).squeeze(-2), context)
    for i in range(2):
        coefficients = reference.ridge_coefficients(x[i], locations(where), basis, 0.01)
        one = type(density)(density.mean[i], density.covariance[i])
        want = reference.expectation(coefficients, basis, one, 40_000 if dimensions == 1 else 600)
        # A paraboloid has a kink at its border: that is what a midpoint rule leaves.
        torch.testing.assert_close(context[i], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("where", WHERE)
def test_every_fit_with_gradients(fit, where):
    pool = ContinuousAttentionPool(6, where, fit=FITS[fit], hidden=8, out=5, dropout=0.1)
    x = torch.randn(3, len(locations(where)), 6, requires_grad=True)
    out = pool(x)
    assert out.context.shape == (3, 5)
    assert isinstance(out.density, C.Mixture) == (fit not in ("one", "paraboloid"))
    out.context.square().sum().backward()
    for p in (x, *pool.parameters()):
        assert p.grad.isfinite().all()
    assert pool.score[0].weight.grad.abs().sum() > 0


def test_the_number_of_components_is_chosen_at_test_time():
    pool = ContinuousAttentionPool(2, (14, 14), fit_test=partial(C.select_mixture, max_components=4))
    x = torch.zeros(1, 14, 14, 2)
    x[0, 2:4, 2:4] = x[0, 10:12, 9:11] = 1
    with torch.no_grad():
        pool.score[0].weight.fill_(1)
        pool.score[0].bias.zero_()
        pool.score[3].weight.fill_(10)
    assert isinstance(pool.train()(x.flatten(1, 2)).density, C.Gaussian)
    assert pool.eval()(x.flatten(1, 2)).density.components.tolist() == [2]


@pytest.mark.parametrize("basis", BASES)
def test_pool_gradcheck(basis):
    pool = switched_on(ContinuousAttentionPool(2, (3, 3), BASES[basis][1], partial(C.match_moments, alpha=2)))
    x = torch.randn(1, 9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pool(x).context, x)


def test_masked_locations_do_not_matter():
    pool = switched_on(ContinuousAttentionPool(4, 8))
    attention = switched_on(ContinuousSelfAttention(4, 2, 8))
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[0, 5:] = False
    x = torch.randn(2, 8, 4, dtype=torch.float64)
    other = torch.where(mask.unsqueeze(-1), x, 7.0)
    a, b = pool(x, mask), pool(other, mask)
    torch.testing.assert_close(a.context, b.context)
    assert (a.weights[0, 5:] == 0).all()
    torch.testing.assert_close(attention(x, mask)[mask], attention(other, mask)[mask])
    torch.testing.assert_close(attention(x, mask)[1], attention(x)[1])
    torch.testing.assert_close(a.context[1], pool(x).context[1])


def test_nothing_to_look_at():
    pool, attention = ContinuousAttentionPool(4, 8), ContinuousSelfAttention(4, 2, 8)
    x = torch.randn(1, 8, 4, requires_grad=True)
    mask = torch.zeros(1, 8, dtype=torch.bool)
    assert (pool(x, mask).context == 0).all()
    (pool(x, mask).context.sum() + attention(x, mask).sum()).backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(attention(x, mask), attention.out.bias.expand(1, 8, 4))


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("alpha", [1, 2])
def test_self_attention_is_the_integral(dimensions, basis, alpha):
    where, basis = WHERE[dimensions - 1], BASES[basis][dimensions - 1]
    attention = switched_on(ContinuousSelfAttention(4, 2, where, basis, alpha=alpha))
    x = torch.randn(1, len(locations(where)), 4, dtype=torch.float64)
    density, got = attention.densities(x), attention(x)
    values = attention.query_key_value(x)[0, :, 8:].unflatten(-1, (2, 2))
    for i in (0, 3):
        heads = []
        for h in range(2):
            coefficients = reference.ridge_coefficients(values[:, h], locations(where), basis, 0.01)
            one = type(density)(density.mean[0, h, i], density.covariance[0, h, i])
            heads.append(reference.expectation(coefficients, basis, one, 40_000 if dimensions == 1 else 600))
        torch.testing.assert_close(got[0, i], attention.out(torch.cat(heads)), rtol=2e-3, atol=2e-3)


def test_the_density_follows_its_formula():
    attention = switched_on(ContinuousSelfAttention(4, 2, (3, 4)))
    x = torch.randn(1, 12, 4, dtype=torch.float64)
    cells = C.grid(3, 4)
    density, basis = attention.densities(x), attention.basis
    q, k, _ = attention.query_key_value(x)[0].chunk(3, -1)
    height = basis(cells.points).square().mean(0).sqrt()
    for h in range(2):
        own = slice(2 * h, 2 * h + 2)
        coefficients = reference.ridge_coefficients(k[:, own], cells, basis, 0.01)
        for i in range(12):
            s = torch.stack([a * (c * q[i, own]).sum() / 2**0.5 for a, c in zip(height, coefficients, strict=True)])
            shape = s @ attention.shape_weight[h] + attention.shape_bias[h]
            lower = torch.stack([torch.stack([shape[2], 0 * shape[2]]), shape[3:]])
            covariance = lower @ lower.mT + torch.eye(2) / 16 / 12
            mean = torch.sigmoid(torch.logit(cells.points[i]) + shape[:2])
            torch.testing.assert_close(density.mean[0, h, i], mean)
            torch.testing.assert_close(density.covariance[0, h, i], covariance)


@pytest.mark.parametrize("where", WHERE)
def test_at_the_start_queries_look_around_themselves(where):
    attention = ContinuousSelfAttention(8, 2, where)
    density = attention.densities(torch.randn(1, len(locations(where)), 8))
    torch.testing.assert_close(density.mean[0, 0], locations(where).points.float(), rtol=0, atol=1e-5)
    assert (density.variance[0, 0] < density.variance[0, 1]).all()
    attention(torch.randn(2, len(locations(where)), 8)).sum().backward()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("alpha", [1, 2])
def test_self_attention_gradcheck(alpha):
    attention = switched_on(ContinuousSelfAttention(2, 1, (2, 3), C.GaussianBasis.on_grid(2, 2), alpha=alpha))
    x = torch.randn(1, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attention, x)


@pytest.mark.once
def test_memory_is_linear_in_the_length():
    """Forward and backward at L = 16,384: one matrix of all pairs would take 1 GB."""
    setup = """
import torch
from regard.nn import ContinuousSelfAttention
from regard.continuous import FourierBasis
attention = ContinuousSelfAttention(16, 1, 16384, FourierBasis.on_line(32))
small = ContinuousSelfAttention(16, 1, 64, FourierBasis.on_line(32))
small(torch.randn(1, 64, 16)).sum().backward()
x = torch.randn(1, 16384, 16, requires_grad=True)
"""
    assert 5 < peak_memory(setup, "attention(x).sum().backward()") < 120


class Context(nn.Module):
    """What torch.export can take: tensors in, tensors out."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        out = self.pool(x)
        return (out.context, out.weights) if isinstance(out, C.Attended) else out


@pytest.mark.parametrize(
    ("make", "basis", "alpha"),
    [("pool", "gaussian", 1), ("pool", "paraboloid", 2), ("self", "gaussian", 2), ("self", "fourier", 1)],
)
@pytest.mark.once
def test_compile_and_export(make, basis, alpha):
    basis = BASES[basis][1]
    fit = partial(C.match_moments, alpha=alpha)
    made = {
        "pool": lambda: ContinuousAttentionPool(4, (4, 5), basis, fit),
        "self": lambda: ContinuousSelfAttention(4, 2, (4, 5), basis, alpha=alpha),
    }[make]()
    module = Context(made).eval()
    x = torch.randn(2, 20, 4)
    want = module(x)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), want)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), want)


@pytest.mark.parametrize("alpha", [1, 2])
def test_autocast_and_bfloat16(alpha):
    fit = partial(C.match_moments, alpha=alpha)
    for make in (
        lambda: ContinuousAttentionPool(4, (4, 5), fit=fit),
        lambda: ContinuousSelfAttention(4, 2, (4, 5), alpha=alpha),
    ):
        module, half = make(), make()
        half.load_state_dict(module.state_dict())
        x = torch.randn(2, 20, 4)
        want = Context(module)(x)
        with torch.autocast("cpu", torch.bfloat16):
            got = Context(module)(x)
        halved = Context(half.bfloat16())(x.bfloat16())
        assert half.operator.dtype == torch.float64
        for a, b, c in zip(*((y,) if isinstance(y, torch.Tensor) else y for y in (want, got, halved)), strict=True):
            assert c.dtype == torch.bfloat16
            torch.testing.assert_close(b.float(), a, rtol=0.05, atol=0.05)
            torch.testing.assert_close(c.float(), a, rtol=0.05, atol=0.05)


def test_state_dict_through_safetensors(tmp_path):
    st_torch = importlib.import_module("safetensors.torch")
    x = torch.randn(2, 20, 4)
    for make in (lambda: ContinuousAttentionPool(4, (4, 5)), lambda: ContinuousSelfAttention(4, 2, (4, 5))):
        one, other = make(), make()
        assert set(one.state_dict()) == {n for n, _ in one.named_parameters()}
        st_torch.save_file(one.state_dict(), tmp_path / "one.safetensors")
        other.load_state_dict(st_torch.load_file(tmp_path / "one.safetensors"))
        torch.testing.assert_close(Context(other)(x), Context(one)(x), rtol=0, atol=0)


def test_repr_says_what_it_is():
    assert "4 x 5 locations, 12 functions of GaussianBasis" in repr(ContinuousAttentionPool(4, (4, 5)))
    assert "4, heads=2, alpha=2, 7 locations, 5 functions" in repr(ContinuousSelfAttention(4, 2, 7, alpha=2))


def test_bad_input_is_named():
    pool, attention = ContinuousAttentionPool(4, 8), ContinuousSelfAttention(4, 2, 8)
    for module in (pool, attention):
        with pytest.raises(ValueError, match=r"^x: got shape \(2, 4, 8\), expected \(..., 8, 4\)"):
            module(torch.zeros(2, 4, 8))
        with pytest.raises(TypeError, match=r"^mask: got torch.float32"):
            module(torch.zeros(2, 8, 4), torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"^x: got shape \(8, 4\), expected \(B, L, dim\)"):
        attention(torch.zeros(8, 4))
    with pytest.raises(ValueError, match=r"^heads: got 3, expected a divisor of dim, 4"):
        ContinuousSelfAttention(4, 3, 8)
    with pytest.raises(ValueError, match=r"^basis: got None"):
        ContinuousAttentionPool(4, C.Locations(torch.rand(5, 2)))
    with pytest.raises(ValueError, match=r"^where: got points outside the unit box"):
        ContinuousSelfAttention(4, 2, C.Locations(2 * torch.ones(5, 1)), C.GaussianBasis.on_line(3))
    with pytest.raises(ValueError, match=r"^dim: got 0"):
        ContinuousAttentionPool(0, 8)
