import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.continuous import cases

from regard import continuous as C

CELLS = C.grid(14, 14)
BASES = {
    "gaussian": C.GaussianBasis.on_grid(10, 10),
    "thesis": C.thesis().basis,
    "paraboloid": C.ParaboloidBasis.on_grid(6, 6),
    "fourier": C.FourierBasis.on_grid(7, 7),
}
SMALL = C.grid(4, 4)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("options", [{}, {"alpha": 2}, {"components": 3}, {"alpha": 2, "components": 2}], ids=str)
def test_it_is_the_expectation_of_the_value_function(name, options):
    """Equation (5.28): c = E_p[V(t)] with V(t) = H G psi(t), B = H G formed, the integral by a fine sum."""
    basis = BASES[name]
    values = torch.randn(2, 196, 3, dtype=torch.float64)
    weights = torch.softmax(3 * torch.randn(2, 196, dtype=torch.float64), -1)
    out = C.continuous_attention(values, weights, CELLS, basis, **options)
    b = values.mT @ C.ridge(CELLS, basis)
    torch.testing.assert_close(out.context, (b @ out.density.expect(basis).unsqueeze(-1)).squeeze(-1))
    t, cell = C.grid(250, 250).points * 3 - 1, 9 / 250**2
    p = out.density.pdf(t) * cell
    expected = torch.einsum("bm,mn,bdn->bd", p, basis(t), b)
    torch.testing.assert_close(out.context, expected, atol=0.05 if name == "thesis" else 5e-3, rtol=0)
    torch.testing.assert_close(out.context, (out.weights.unsqueeze(-2) @ values).squeeze(-2))


def test_a_sharp_density_reads_its_own_cell():
    """As many cosines as cells, no penalty, one-hot weights: the context is the cell's value, blurred a little."""
    basis = C.FourierBasis.on_grid(14, 14)
    weights = torch.eye(196, dtype=torch.float64)[[0, 97]]
    values = torch.cos(3 * CELLS.points[:, :1]).expand(2, 196, 1)
    for alpha in (1, 2):
        out = C.continuous_attention(values, weights, CELLS, basis, alpha, penalty=0.0)
        torch.testing.assert_close(out.context, values[:, [0, 97]].diagonal().mT, atol=0.02, rtol=0)


def test_queries_share_values():
    values, weights = torch.randn(2, 16, 5), torch.rand(2, 3, 16)
    basis = C.GaussianBasis.on_grid(3, 3)
    out = C.continuous_attention(values, weights, SMALL, basis, alpha=2)
    assert out.context.shape == (2, 3, 5)
    one = C.continuous_attention(values, weights[:, 1], SMALL, basis, alpha=2)
    torch.testing.assert_close(out.context[:, 1], one.context)


@pytest.mark.parametrize("options", [{}, {"alpha": 2}, {"components": 2}, {"padding": True}], ids=str)
def test_gradcheck(options):
    values = torch.randn(2, 16, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, 16, dtype=torch.float64, requires_grad=True)
    basis = C.GaussianBasis.on_grid(3, 3)
    assert torch.autograd.gradcheck(
        lambda v, w: C.continuous_attention(v, w, SMALL, basis, **options).context, (values, weights)
    )


@pytest.mark.parametrize("options", [{}, {"alpha": 2}, {"components": 2}], ids=str)
def test_ragged_inputs(options):
    """Masked locations enter nothing, whatever they hold; a row without locations gives zero, gradient included."""
    cells, basis = C.line(8), C.GaussianBasis.on_line(5)
    lengths = torch.tensor([8, 5, 0])
    mask = torch.arange(8) < lengths[:, None]
    values = torch.randn(3, 8, 2, dtype=torch.float64)
    weights = torch.rand(3, 8, dtype=torch.float64)
    out = C.continuous_attention(values, weights, cells, basis, mask=mask, **options)
    junk = torch.where(mask, weights, 7.0).requires_grad_()
    loud = torch.where(mask.unsqueeze(-1), values, 1e6).requires_grad_()
    again = C.continuous_attention(loud, junk, cells, basis, mask=mask, **options)
    torch.testing.assert_close(again.context, out.context)
    grads = torch.autograd.grad(again.context.sum(), (junk, loud))
    for g in grads:
        assert g.isfinite().all()
        assert g[~mask].eq(0).all()
        assert g[2].eq(0).all()
    assert again.context[2].eq(0).all()
    assert again.weights[~mask].eq(0).all()
    fixed = C.continuous_attention(values, weights, cells, basis, operator=C.ridge(cells, basis), mask=mask, **options)
    assert fixed.weights[~mask].eq(0).all()
    assert fixed.context[2].eq(0).all()
    if options.get("components") is None:
        short = C.Locations(cells.points[:5], cells.sides)
        alone = C.continuous_attention(values[1, :5], weights[1, :5], short, basis, **options)
        torch.testing.assert_close(out.context[1], alone.context)


def test_the_operator_can_be_kept_outside():
    values, weights, basis = torch.randn(2, 16, 3), torch.rand(2, 16), C.GaussianBasis.on_grid(3, 3)
    kept = C.ridge(SMALL, basis, 0.1, True).float()
    a = C.continuous_attention(values, weights, SMALL, basis, operator=kept)
    b = C.continuous_attention(values, weights, SMALL, basis, penalty=0.1, padding=True)
    torch.testing.assert_close(a.context, b.context)
    with pytest.raises(ValueError, match="operator: got penalty or padding"):
        C.continuous_attention(values, weights, SMALL, basis, operator=kept, padding=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("options", [{}, {"alpha": 2}, {"alpha": 1.5}, {"components": 4}], ids=str)
def test_every_case_is_finite_in_every_dtype(dtype, name, options):
    weights = torch.stack(list(cases().values())).to(dtype).requires_grad_()
    values = torch.randn(len(weights), 196, 4).to(dtype).requires_grad_()
    out = C.continuous_attention(values, weights, CELLS, BASES[name], **options)
    assert out.context.dtype == out.weights.dtype == dtype
    assert out.context.isfinite().all()
    # float16 ends at 65504; what is tested is that nothing in between makes a NaN.
    (out.context.float().sum() / 100).backward()
    assert weights.grad.isfinite().all()
    assert values.grad.isfinite().all()
    exact = C.continuous_attention(values.detach().double(), weights.detach().double(), CELLS, BASES[name], **options)
    scale = exact.context.abs().max()
    tolerance = {torch.float32: 2e-4, torch.bfloat16: 0.05, torch.float16: 0.01}[dtype]
    if "components" not in options:
        assert (out.context.double() - exact.context).abs().max() <= tolerance * scale


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0, 1, width=32)), min_size=16, max_size=16),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3]),
)
def test_every_point_of_the_simplex(weights, alpha, components):
    w = torch.tensor([weights], dtype=torch.float32)
    w = (w / w.sum().clamp_min(1e-30)).requires_grad_()
    values = torch.randn(1, 16, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = C.continuous_attention(values, w, SMALL, C.GaussianBasis.on_grid(4, 4), alpha, components)
    out.context.sum().backward()
    assert out.context.isfinite().all()
    assert w.grad.isfinite().all()
    assert values.grad.isfinite().all()


def test_calling_twice_before_backward():
    """No hidden state: the gradients are those of each call alone."""
    basis = C.GaussianBasis.on_grid(3, 3)
    values = torch.randn(2, 16, 3, dtype=torch.float64)
    w = [torch.rand(2, 16, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    a, b = (C.continuous_attention(values, x, SMALL, basis, alpha=2).context.sum() for x in w)
    together = torch.autograd.grad(a + b, w)
    for x, g in zip(w, together, strict=True):
        (alone,) = torch.autograd.grad(C.continuous_attention(values, x, SMALL, basis, alpha=2).context.sum(), x)
        torch.testing.assert_close(g, alone)


# torch.compile's own tracer instantiates an autograd.Function, and warns itself about it.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"alpha": 2}], ids=str)
@pytest.mark.once
def test_compile(options):
    basis = C.GaussianBasis.on_grid(3, 3)
    operator = C.ridge(SMALL, basis).float()
    values, weights = torch.randn(2, 16, 3), torch.rand(2, 16, requires_grad=True)

    def run(v, w):
        return C.continuous_attention(v, w, SMALL, basis, operator=operator, **options).context

    compiled = torch.compile(run, backend="aot_eager")
    torch.testing.assert_close(compiled(values, weights), run(values, weights))
    (a,) = torch.autograd.grad(compiled(values, weights).sum(), weights)
    (b,) = torch.autograd.grad(run(values, weights).sum(), weights)
    torch.testing.assert_close(a, b)


def test_non_contiguous_inputs():
    basis = C.GaussianBasis.on_grid(3, 3)
    values, weights = torch.randn(3, 16, 2).mT.contiguous().mT, torch.rand(16, 2).mT
    out = C.continuous_attention(values[:2], weights, SMALL, basis, alpha=2)
    plain = C.continuous_attention(values[:2].contiguous(), weights.contiguous(), SMALL, basis, alpha=2)
    torch.testing.assert_close(out.context, plain.context)


def test_errors():
    basis = C.GaussianBasis.on_grid(3, 3)
    with pytest.raises(ValueError, match="values: got shape"):
        C.continuous_attention(torch.randn(2, 15, 3), torch.rand(2, 16), SMALL, basis)
    with pytest.raises(ValueError, match="weights: got shape"):
        C.continuous_attention(torch.randn(2, 16, 3), torch.rand(2, 15), SMALL, basis)
    with pytest.raises(ValueError, match="components: got 0"):
        C.continuous_attention(torch.randn(2, 16, 3), torch.rand(2, 16), SMALL, basis, components=0)
