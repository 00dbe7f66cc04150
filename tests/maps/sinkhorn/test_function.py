"""Sinkhorn: against the published loop, an exact assignment, autograd, and itself over two processes."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from reference.transport import log_plan, published_loop
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from regard.attention.attend import attend
from regard.maps.sinkhorn import Sinkhorn, scaling, sinkhorn
from regard.wasserstein.affinities import GaussianW2

INF = math.inf


@pytest.mark.parametrize("eps", [1.0, 0.05, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_iteration_scales_the_rows_alone(eps: float, dtype: torch.dtype) -> None:
    s = (1000 * eps * torch.randn(5, 7)).to(dtype)
    s[0, 2], s[1] = -INF, -INF
    found = sinkhorn(s, eps, 0)
    weights = (s.double() / eps)[[0, 2, 3, 4]].softmax(-1)
    torch.testing.assert_close(found.weights[[0, 2, 3, 4]], weights.to(dtype))
    assert (found.plan[1] == 0).all()
    torch.testing.assert_close(found.plan.sum(-1), torch.tensor([0.25, 0, 0.25, 0.25, 0.25], dtype=dtype))
    torch.testing.assert_close(found.residual, (7 * found.plan.sum(0) - 1).abs().max())
    assert found.iterations == 0
    assert not found.converged
    torch.testing.assert_close(Sinkhorn(eps, iterations=0)(s), found.weights)


def test_no_iteration_is_differentiable_and_knows_masses() -> None:
    s = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    columns = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    torch.autograd.gradcheck(lambda s: sinkhorn(s, 0.3, 0, rows=rows, columns=columns).plan, s)
    plan = sinkhorn(s, 0.3, 0, rows=rows, columns=columns).plan
    torch.testing.assert_close(plan[[0, 2], :2], (s[[0, 2], :2] / 0.3).softmax(-1) / 2)
    assert (plan[1] == 0).all()
    assert (plan[:, 2:] == 0).all()


def trained_like(b: int, k: int, dim: int = 32) -> Tensor:
    """Cosines of clustered samples to prototypes that are not balanced."""
    centres = torch.randn(10, dim)
    z = centres[torch.randint(10, (b,)) ** 2 // 9] + 0.3 * torch.randn(b, dim)
    c = centres[torch.randint(10, (k,))] + 0.3 * torch.randn(k, dim)
    return torch.nn.functional.normalize(z, dim=-1) @ torch.nn.functional.normalize(c, dim=-1).T


@pytest.mark.parametrize("iterations", [1, 3, 10, 50])
@pytest.mark.parametrize("eps", [1.0, 0.05, 0.01])
def test_equals_the_published_loop_for_every_number_of_iterations(eps: float, iterations: int) -> None:
    s = trained_like(60, 40)
    expected = published_loop(s, eps, iterations)
    torch.testing.assert_close(sinkhorn(s.double(), eps, iterations).plan, expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(60 * sinkhorn(s, eps, iterations).plan.double(), 60 * expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("iterations", [1, 3, 50])
@pytest.mark.parametrize(("eps", "scale"), [(1e-3, 1.0), (1e-3, 100.0), (0.05, 1e4), (1e-3, 1e30)])
def test_float32_is_right_where_the_published_loop_is_not_a_number(eps: float, scale: float, iterations: int) -> None:
    s = (2 * torch.rand(80, 50) - 1) * scale
    result = sinkhorn(s, eps, iterations)
    assert result.plan.isfinite().all()
    assert result.residual.isfinite()
    uniform = torch.full((80,), 1 / 80, dtype=torch.float64), torch.full((50,), 1 / 50, dtype=torch.float64)
    if scale < 1e30:
        expected = log_plan(s.double(), eps, iterations, *uniform)
        torch.testing.assert_close(80 * result.plan.double(), 80 * expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(result.plan.sum(-1), torch.full((80,), 1 / 80), rtol=1e-5, atol=0)
    columns = result.plan.double().sum(0)
    torch.testing.assert_close(result.residual.double(), (50 * columns - 1).abs().max(), rtol=1e-4, atol=1e-5)


def test_a_large_matrix_takes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    s = trained_like(1003, 301)
    result = sinkhorn(s, 0.05, 5)
    torch.testing.assert_close(1003 * result.plan.double(), 1003 * published_loop(s, 0.05, 5), rtol=0, atol=5e-6)
    # Without the certificate the same hard problem is finite and wrong: the bound is what saves it.
    hard, uniform = 3 * s, (torch.full((1003,), 1 / 1003).double(), torch.full((301,), 1 / 301).double())
    expected = 1003 * log_plan(hard.double(), 5e-3, 30, *uniform)
    assert (1003 * sinkhorn(hard, 5e-3, 30).plan - expected).abs().max() < 1e-5
    monkeypatch.setattr(scaling, "underflow_bound", lambda x, sums, marginal: torch.zeros(len(sums)))
    assert not (1003 * sinkhorn(hard, 5e-3, 30).plan - expected).abs().max() < 1e-2


def test_marginals_after_convergence() -> None:
    s = torch.randn(3, 20, 30, dtype=torch.float64)
    a, b = torch.rand(3, 20, dtype=torch.float64).softmax(-1), torch.rand(30, dtype=torch.float64).softmax(-1)
    result = sinkhorn(s, 0.1, 5000, tol=1e-9, rows=a, columns=b)
    assert result.converged.all()
    assert result.converged.shape == (3,)
    assert (result.plan.sum(-1) - a).abs().max() < 1e-8
    assert (result.plan.sum(-2) - b).abs().max() < 1e-8
    f, g = result.potentials
    torch.testing.assert_close(((s + f[..., None] + g[..., None, :]) / 0.1).exp(), result.plan)


def test_small_eps_reaches_the_exact_assignment() -> None:
    s = torch.rand(12, 12)
    result = sinkhorn(s, 1e-3, 20_000, tol=1e-3)
    rows, columns = linear_sum_assignment(s.numpy(), maximize=True)
    assert result.converged
    assert (12 * result.plan).argmax(-1).tolist() == columns.tolist()
    assert abs(12 * (result.plan * s).sum() - s[rows, columns].sum()) < 1e-2


def test_it_says_when_it_did_not_converge() -> None:
    s = torch.randn(30, 20)
    few, enough = sinkhorn(s, 0.01, 3), sinkhorn(s, 0.5, tol=1e-5)
    assert not few.converged
    assert few.iterations == 3
    assert few.residual > 0.1
    assert enough.converged
    assert enough.residual <= 1e-5
    assert enough.iterations < 1000


@given(
    st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1e-3, 0.05, 1.0]), st.integers(1, 12)
)
def test_properties(seed: int, b: int, k: int, eps: float, iterations: int) -> None:
    torch.manual_seed(seed)
    s = torch.randn(b, k) * 10 ** float(torch.randint(-1, 4, ()))
    result = sinkhorn(s, eps, iterations)
    torch.testing.assert_close(result.plan.sum(-1), torch.full((b,), 1 / b))
    assert (result.plan >= 0).all()
    # A constant added to a row or a column of the converged problem, or to all scores, changes nothing.
    torch.testing.assert_close(sinkhorn(s + 8, eps, iterations).plan, sinkhorn((s + 8) - 8, eps, iterations).plan)
    order = torch.randperm(b)
    torch.testing.assert_close(sinkhorn(s[order], eps, iterations).plan, result.plan[order], rtol=1e-4, atol=1e-6)


def test_marginals_with_zeros() -> None:
    s = torch.randn(5, 4, dtype=torch.float64)
    a = torch.tensor([0.5, 0.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    b = torch.tensor([0.0, 0.6, 0.4, 0.0], dtype=torch.float64)
    for eps in (0.5, 1e-3):
        result = sinkhorn(s, eps, 200, rows=a, columns=b)
        expected = sinkhorn(s[a > 0][:, b > 0], eps, 200, rows=a[a > 0], columns=b[b > 0])
        torch.testing.assert_close(result.plan[a > 0][:, b > 0], expected.plan)
        torch.testing.assert_close(result.plan.sum(-1), a)
        assert result.plan[a == 0].eq(0).all()
        assert result.plan[:, b == 0].eq(0).all()
        assert result.weights[a == 0].eq(0).all()


@pytest.mark.parametrize("eps", [0.5, 1e-3])
def test_masked_entries_rows_and_columns_take_no_mass(eps: float) -> None:
    s = torch.randn(5, 4, dtype=torch.float64)
    mask = torch.ones(5, 4, dtype=torch.bool)
    mask[1], mask[:, 2], mask[0, 0] = False, False, False
    result = sinkhorn(s, eps, 100, mask=mask)
    torch.testing.assert_close(result.plan, sinkhorn(s.masked_fill(~mask, -INF), eps, 100).plan)
    assert result.plan[~mask].eq(0).all()
    torch.testing.assert_close(
        result.plan.sum(-1), torch.tensor([0.25, 0, 0.25, 0.25, 0.25]).double(), rtol=1e-6, atol=0
    )
    alive = [0, 2, 3, 4]
    part = sinkhorn(s.masked_fill(~mask, -INF)[alive][:, [0, 1, 3]], eps, 100).plan
    torch.testing.assert_close(result.plan[alive][:, [0, 1, 3]], part)
    x = s.clone().requires_grad_()
    sinkhorn(x, eps, 3, mask=mask).plan.square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad[~mask].eq(0).all()


def test_all_masked_gives_zeros_and_an_impossible_mask_is_reported() -> None:
    nothing = sinkhorn(torch.full((3, 2), -INF))
    assert nothing.plan.eq(0).all()
    # Two rows that only fit the first column cannot leave half of the mass to the second.
    s = torch.tensor([[0.0, -INF], [0.0, -INF]])
    with_second = sinkhorn(s, columns=torch.tensor([0.5, 0.5]))
    assert with_second.converged  # the second column is masked whole and takes no mass
    s = torch.tensor([[0.0, -INF], [0.0, -INF], [0.0, 0.0]])
    result = sinkhorn(s, iterations=50)
    assert result.plan.isfinite().all()
    assert not result.converged
    assert result.residual > 0.1


@pytest.mark.parametrize("eps", [0.5, 0.02, 2e-3])
@pytest.mark.parametrize("iterations", [1, 3, 25])
def test_unrolled_gradient(eps: float, iterations: int) -> None:
    s = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    a, b = (torch.rand(2, n, dtype=torch.float64).requires_grad_() for n in (5, 4))
    weight, on_f, on_g = torch.randn(2, 5, 4), torch.randn(2, 5), torch.randn(2, 4)

    def loss(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        result = sinkhorn(s, eps, iterations, rows=a.softmax(-1), columns=b.softmax(-1))
        f, g = result.potentials
        return (result.plan * weight).sum() + (f * on_f).sum() + (g * on_g).sum()

    torch.autograd.gradcheck(loss, (s, a, b))


def test_unrolled_gradient_equals_autograd_in_float32_and_on_a_large_matrix() -> None:
    s = trained_like(600, 500).requires_grad_()
    weight = torch.randn(600, 500)
    (ours,) = torch.autograd.grad((600 * sinkhorn(s, 0.05, 3).plan * weight).sum(), s)
    twin = s.detach().double().requires_grad_()
    uniform = torch.full((600,), 1 / 600, dtype=torch.float64), torch.full((500,), 1 / 500, dtype=torch.float64)
    (expected,) = torch.autograd.grad((600 * log_plan(twin, 0.05, 3, *uniform) * weight).sum(), twin)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eps", [0.5, 0.1, 0.01])
def test_implicit_gradient_is_that_of_the_fixed_point(eps: float, seed: int) -> None:
    torch.manual_seed(seed)
    s = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    a, b = (torch.rand(n, dtype=torch.float64).requires_grad_() for n in (6, 4))
    weight, outer = torch.randn(6, 4), torch.randn(6, 4)
    grads = []
    for gradient in ("unrolled", "implicit"):
        result = sinkhorn(s, eps, 20_000, tol=1e-12, rows=a.softmax(-1), columns=b.softmax(-1), gradient=gradient)
        f, g = result.potentials
        loss = (result.plan * weight).sum() + ((f[:, None] + g) * outer).sum()
        grads.append(torch.autograd.grad(loss, (s, a, b)))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-6, atol=1e-8)


def test_zero_marginals_have_finite_gradients() -> None:
    s = torch.randn(3, 3, requires_grad=True)
    a = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    for settings in ({"iterations": 4}, {"tol": 1e-5, "gradient": "implicit"}):
        for eps in (0.5, 1e-3):
            plan = sinkhorn(s, eps, rows=a, **settings).plan
            assert all(x.isfinite().all() for x in torch.autograd.grad(plan.square().sum(), (s, a)))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, atol: float) -> None:
    s = trained_like(300, 200).to(dtype)
    result = sinkhorn(s, 0.01, 3)
    exact = sinkhorn(s.double(), 0.01, 3)
    assert result.plan.dtype == (torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
    torch.testing.assert_close(result.weights.double(), exact.weights, rtol=0, atol=atol)
    assert Sinkhorn()(s).dtype == dtype
    x = s.clone().requires_grad_()
    sinkhorn(x, 0.01, 3).plan.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


def test_as_a_map_it_gives_doubly_stochastic_attention() -> None:
    q, k, v = torch.rand(2, 4, 6, 8), torch.rand(2, 4, 6, 8), torch.randn(2, 4, 6, 3)
    s = GaussianW2().scores(q, k)
    for weights in (Sinkhorn(tol=1e-6)(s), sinkhorn(s, 1.0, tol=1e-6).weights):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6))
        torch.testing.assert_close(weights.sum(-2), torch.ones(2, 4, 6), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attend(q, k, v, affinity=GaussianW2(), map=sinkhorn), sinkhorn(s).weights @ v)
    torch.testing.assert_close(Sinkhorn()(s.mT, dim=-2), Sinkhorn()(s).mT)
    assert Sinkhorn().couples_rows
    assert sinkhorn.couples_rows


@pytest.mark.once
def test_vmap_and_compile_give_the_same() -> None:
    s = torch.randn(3, 6, 5)
    expected = sinkhorn(s, 0.1, 4).plan
    torch.testing.assert_close(torch.func.vmap(lambda x: sinkhorn(x, 0.1, 4).plan)(s), expected)
    compiled = torch.compile(lambda x: sinkhorn(x, 0.1, 4).plan, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(s), expected)
    jacobian = torch.func.jacrev(lambda x: sinkhorn(x, 0.1, 4).plan)(s[0])
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: sinkhorn(x, 0.1, 4).plan, s[0]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"s": torch.tensor([[math.nan, 0.0]])}, "s: got NaN"),
        ({"s": torch.tensor([[INF, 0.0]])}, r"s: got \+inf"),
        ({"s": torch.zeros(3)}, "s: got shape"),
        ({"s": torch.zeros(0, 3)}, "empty along dim -2"),
        ({"eps": 0.0}, "eps: got 0"),
        ({"eps": 0.0}, "At 0 itself .*exact_wasserstein"),
        ({"iterations": -1}, "iterations: got -1"),
        ({"tol": -1.0}, "tol: got -1"),
        ({"rows": torch.ones(3)}, "rows: got shape"),
        ({"rows": torch.tensor([-1.0, 2.0])}, "rows: got a negative"),
        ({"rows": torch.ones(2), "columns": torch.ones(3)}, "rows: got a sum of 2 against 3"),
        ({"gradient": "both"}, "gradient: got 'both'"),
        ({"gradient": "implicit"}, "gradient: got 'implicit' without tol"),
    ],
)
def test_complaints(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sinkhorn(**({"s": torch.zeros(2, 3)} | arguments))


SETTINGS = [
    {"eps": 0.05, "iterations": 3},
    {"eps": 1e-3, "iterations": 12},
    {"eps": 0.1, "tol": 1e-5, "gradient": "implicit"},
]


def _scores() -> Tensor:
    torch.manual_seed(0)
    s = trained_like(23, 7)
    s[4] = -INF
    return s


def _process(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for i, settings in enumerate(SETTINGS):
        mine = (_scores()[:9] if rank == 0 else _scores()[9:]).requires_grad_()
        result = sinkhorn(mine, group=dist.group.WORLD, **settings)
        result.weights.square().sum().backward()
        parts = (result.plan.detach(), result.potentials[1].detach(), result.residual, mine.grad)
        torch.save(parts, f"{out}/{i}-{rank}")
    dist.destroy_process_group()


@pytest.mark.once
def test_two_processes_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    mp.spawn(_process, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    for i, settings in enumerate(SETTINGS):
        parts = [torch.load(tmp_path / f"{i}-{rank}") for rank in range(2)]
        s = _scores().requires_grad_()
        result = sinkhorn(s, **settings)
        result.weights.square().sum().backward()
        torch.testing.assert_close(23 * torch.cat([p[0] for p in parts]), 23 * result.plan, rtol=0, atol=1e-6)
        for part in parts:
            torch.testing.assert_close(part[1], result.potentials[1], rtol=0, atol=1e-5)
            torch.testing.assert_close(part[2], result.residual, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(torch.cat([p[3] for p in parts]), s.grad, rtol=1e-3, atol=1e-4)
