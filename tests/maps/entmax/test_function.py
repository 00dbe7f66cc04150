"""Softmax, sparsemax, entmax, mean: against twins, by their objective, by their properties, at their edges."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import maps as reference
from torch.autograd import gradcheck, gradgradcheck

import regard

ALPHAS = [0.05, 0.5, 0.99, 1.0, 1.0001, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0]
MAPS = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "entmax15": regard.entmax,
    "entmax125": partial(regard.entmax, alpha=1.25),
    "entmax3": partial(regard.entmax, alpha=3.0),
    "entmax05": partial(regard.entmax, alpha=0.5),
    "normmax": regard.normmax,
    "normmax5": partial(regard.normmax, alpha=5.0),
    "budget": partial(regard.budget_sparsemax, budget=2.5),
    "mean": regard.mean,
}
DISTRIBUTIONS = {name: f for name, f in MAPS.items() if name not in ("mean", "budget")}

rows = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=80)
alphas = st.floats(0.05, 3)


def tensor(row):
    return torch.tensor(row, dtype=torch.float64)


def adversarial(n: int) -> torch.Tensor:
    """Rows that make threshold searches slow or wrong: ties, steps, one-hot, near one-hot, huge, tiny spread."""
    base = torch.linspace(-3, 0, n, dtype=torch.float64)
    return torch.stack(
        [
            torch.zeros(n, dtype=torch.float64),
            base,
            1e4 * torch.eye(n, dtype=torch.float64)[n // 2],
            torch.eye(n, dtype=torch.float64)[n - 1],
            base.exp(),
            1e-6 * torch.randn(n, dtype=torch.float64),
            -torch.arange(n, dtype=torch.float64).sqrt() / n,
            (base > -1).double(),
            1e6 + torch.randn(n, dtype=torch.float64),
        ]
    )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 200, 4097])
def test_entmax_equals_bisection(alpha, n):
    s = torch.cat([adversarial(n), torch.randn(5, n, dtype=torch.float64)])
    expected = reference.entmax(s, alpha)
    # Past alpha = 2 the weights behave like a root at the edge of the support: rounding of 1e-16 shows as 1e-8.
    torch.testing.assert_close(regard.entmax(s, alpha), expected, rtol=0, atol=1e-10 if alpha <= 2 else 1e-7)
    per_row = torch.full((len(s), 1), alpha, dtype=torch.float64)
    torch.testing.assert_close(regard.entmax(s, per_row), expected, rtol=0, atol=1e-10 if alpha <= 2 else 1e-7)


@pytest.mark.parametrize(("ours", "obvious"), [("sparsemax", reference.sparsemax), ("entmax15", reference.entmax)])
def test_float32_error_at_most_twice_that_of_the_obvious_version(ours, obvious):
    for n in (20, 196, 4096):
        s = torch.randn(64, n)
        exact = obvious(s.double())
        error = (MAPS[ours](s) - exact).abs().max()
        assert error <= 2 * (obvious(s) - exact).abs().max() + 1e-7


@given(rows, alphas)
def test_maximises_the_objective(row, alpha):
    """Equations 2.2 to 2.4: no distribution nearby, and no vertex, does better."""
    s = tensor(row)
    p = regard.entmax(s, alpha)
    best = s @ p + reference.tsallis(p, alpha)
    others = torch.cat([torch.eye(len(row), dtype=s.dtype), torch.softmax(torch.randn(20, len(row)).double(), -1)])
    for weight in (1.0, 0.1, 1e-3):
        candidates = (1 - weight) * p + weight * others
        values = candidates @ s + reference.tsallis(candidates, alpha)
        assert (values <= best + 1e-9 * (1 + s.abs().max())).all()


@given(rows, alphas)
def test_is_a_distribution(row, alpha):
    p = regard.entmax(tensor(row), alpha)
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)


@given(rows, alphas, st.floats(-1e3, 1e3))
def test_a_shift_of_all_scores_changes_nothing(row, alpha, shift):
    s = tensor(row)
    torch.testing.assert_close(regard.entmax(s + shift, alpha), regard.entmax(s, alpha), rtol=0, atol=1e-6)


@given(rows, alphas, st.randoms(use_true_random=False))
def test_permuted_scores_give_permuted_weights(row, alpha, random):
    order = torch.tensor(random.sample(range(len(row)), len(row)))
    s = tensor(row)
    torch.testing.assert_close(regard.entmax(s[order], alpha), regard.entmax(s, alpha)[order], rtol=0, atol=1e-7)


@given(rows, st.floats(1, 2), st.floats(0, 1))
def test_support_shrinks_as_alpha_grows(row, alpha, more):
    s = tensor(row)
    wide, narrow = regard.entmax(s, alpha) > 0, regard.entmax(s, alpha + more) > 1e-9
    assert (wide | ~narrow).all()


@given(rows)
def test_limits_in_alpha(row):
    s = tensor(row)
    torch.testing.assert_close(regard.entmax(s, 1 + 1e-9), regard.softmax(s), rtol=0, atol=1e-6)
    torch.testing.assert_close(regard.entmax(s, 2 - 1e-9), regard.sparsemax(s), rtol=0, atol=1e-6)
    assert torch.equal(regard.entmax(s, 1), regard.softmax(s))
    assert torch.equal(regard.entmax(s, 2), regard.sparsemax(s))
    assert torch.equal(regard.entmax(s, 1.0), torch.softmax(s, -1))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("how", ["mask", "-inf"])
def test_masked_row_equals_shorter_row(name, how):
    s = torch.randn(6, 90, dtype=torch.float64)
    mask = torch.rand(90) < 0.6
    got = MAPS[name](s, mask=mask) if how == "mask" else MAPS[name](s.masked_fill(~mask, -math.inf))
    assert (got[:, ~mask] == 0).all()
    torch.testing.assert_close(got[:, mask], MAPS[name](s[:, mask]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MAPS)
def test_a_row_masked_whole_is_zero_with_zero_gradient(name):
    s = (0.1 * torch.randn(4, 70)).requires_grad_()
    mask = torch.ones(4, 70, dtype=torch.bool)
    mask[1] = False
    p = MAPS[name](s, mask=mask)
    (p * torch.randn_like(p)).sum().backward()
    assert (p[1] == 0).all()
    assert (s.grad[1] == 0).all()
    assert s.grad.isfinite().all()
    assert s.grad[0].abs().sum() > 0


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_plus_infinity_are_named(name, bad):
    s = torch.zeros(3, 4)
    s[1, 2] = bad
    with pytest.raises(ValueError, match=r"^s: got (NaN|\+inf)"):
        MAPS[name](s)
    with regard.checks(False):
        p = MAPS[name](s)
    assert not p[1].isfinite().all()
    torch.testing.assert_close(p[[0, 2]], MAPS[name](s[[0, 2]]))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_axis_and_layout(name, dim):
    s = torch.randn(5, 6, 7).transpose(0, 2)[::2]
    expected = MAPS[name](s.movedim(dim, -1).contiguous()).movedim(-1, dim)
    torch.testing.assert_close(MAPS[name](s, dim=dim), expected)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    s = torch.randn(8, 300).to(dtype)
    p = MAPS[name](s)
    assert p.dtype == dtype
    torch.testing.assert_close(p, MAPS[name](s.float()).to(dtype))


@pytest.mark.parametrize("name", MAPS)
def test_empty_batch(name):
    assert MAPS[name](torch.zeros(0, 5)).shape == (0, 5)


@pytest.mark.parametrize("alpha", [alpha for alpha in ALPHAS if alpha != 1])
def test_gradients(alpha):
    s = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    f = partial(regard.entmax, alpha=alpha)
    assert gradcheck(f, s, check_forward_ad=True)
    assert gradgradcheck(f, s)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.9, 0.99999, 1.00001, 1.2, 1.5, 1.9, 2.3])
def test_gradients_in_alpha(alpha):
    s = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    a = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(regard.entmax, (s, a), check_forward_ad=True)
    assert gradgradcheck(regard.entmax, (s, a))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.3])
def test_gradients_in_alpha_of_weights_that_are_very_small(alpha):
    s = 200 * torch.randn(3, 7, dtype=torch.float64)
    a = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(partial(regard.entmax, s), (a,))


def test_gradient_in_alpha_at_one_is_the_limit():
    """Equation 2.13."""
    s = torch.randn(4, 9, dtype=torch.float64)
    a = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    g = torch.randn(4, 9, dtype=torch.float64)
    (got,) = torch.autograd.grad((regard.entmax(s, a) * g).sum(), a)
    p = torch.softmax(s, -1)
    square = p.log() ** 2
    slope = -p / 2 * (square - (p * square).sum(-1, keepdim=True))
    torch.testing.assert_close(got, (slope * g).sum(-1, keepdim=True))
    for alpha in (1.0001, 0.9999):
        near = torch.full_like(a, alpha, dtype=torch.float32).requires_grad_()
        (got,) = torch.autograd.grad((regard.entmax(s.float(), near) * g.float()).sum(), near)
        torch.testing.assert_close(got.double(), (slope * g).sum(-1, keepdim=True), rtol=2e-3, atol=1e-4)


@given(rows, st.floats(0.05, 0.95))
def test_below_one_no_weight_is_zero_and_tails_are_longer(row, alpha):
    """What is below the largest score by x has at most the weight (1 + (1 - alpha) x)^(-1 / (1 - alpha))."""
    s = tensor(row)
    p = regard.entmax(s, alpha)
    assert (p > 0).all()
    assert p.min() >= regard.softmax(s).min() * (1 - 1e-12)
    assert (p <= (1 + (1 - alpha) * (s.max() - s)) ** (-1 / (1 - alpha)) * (1 + 1e-12)).all()


def test_each_row_has_its_own_alpha():
    s = torch.randn(4, 30)
    for a in ([1.0, 1.3, 2.0, 1.5], [0.3, 1.0, 0.9, 2.0], [0.2, 1.0, 3.0, 0.9]):
        one_alpha_a_row(s, torch.tensor(a).unsqueeze(1))
    heads = torch.tensor([1.1, 1.9]).view(2, 1, 1)
    assert regard.entmax(torch.randn(3, 2, 5, 6), heads).shape == (3, 2, 5, 6)


def one_alpha_a_row(s, a):
    for i in range(4):
        torch.testing.assert_close(regard.entmax(s, a)[i], regard.entmax(s[i], a[i].item()), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_function_transforms(name):
    f = MAPS[name]
    x = torch.randn(6, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(f, in_dims=1, out_dims=1)(x), f(x))
    loss = lambda s: (f(s) ** 3).sum()  # noqa: E731
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(y), y)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), expected)
    hessian = torch.func.hessian(loss)(x[0, 0])
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(loss, x[0, 0]))


def test_vmap_over_alpha():
    s, a = torch.randn(4, 5), torch.tensor([1.2, 0.5, 1.8])
    got = torch.func.vmap(regard.entmax, in_dims=(None, 0))(s, a)
    for i in range(3):
        torch.testing.assert_close(got[i], regard.entmax(s, a[i].item()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.once
def test_compiles_without_a_break(dtype):
    def f(s, a, mask):
        names = ("softmax", "sparsemax", "entmax15", "entmax05", "mean", "normmax", "budget")
        each = [MAPS[name](s, mask=mask).float().square().sum() for name in names]
        return sum(each) + regard.entmax(s, a, dim=0).square().sum()

    s = torch.randn(6, 70).to(dtype)
    mask = torch.rand(6, 70) < 0.8
    mask[2] = False
    results = []
    for g in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        x, a = s.clone().requires_grad_(), torch.full((1, 70), 1.3, requires_grad=True)
        y = g(x, a, mask)
        y.backward()
        results.append((y, x.grad, a.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch 2.15's own check
def test_the_compiled_operator_is_well_formed():
    s = torch.randn(3, 70, requires_grad=True)
    a = torch.full((3, 1), 1.5, requires_grad=True)
    torch.library.opcheck(torch.ops.regard.entmax.default, (s, None, 1.5, -1))
    torch.library.opcheck(torch.ops.regard.entmax.default, (s, a, 0.0, -1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: regard.softmax([1.0]), TypeError, r"^s: got list, expected a torch.Tensor"),
        (lambda s: regard.softmax(s.long()), TypeError, r"^s: got torch.int64, expected a floating-point"),
        (lambda s: regard.sparsemax(s, dim=2), ValueError, r"^dim: got 2, expected an axis of s"),
        (lambda s: regard.sparsemax(s, dim=(0, 1)), TypeError, r"^dim: got \(0, 1\)"),
        (lambda s: regard.sparsemax(s[:, :0]), ValueError, r"^s: got shape \(3, 0\), empty along dim -1"),
        (lambda s: regard.sparsemax(s[0, 0]), ValueError, r"^s: got shape \(\), expected at least 1 dim"),
        (lambda s: regard.entmax(s, 0), ValueError, r"^alpha: got 0, expected a finite number > 0"),
        (lambda s: regard.entmax(s, -0.5), ValueError, r"^alpha: got -0.5, expected a finite number > 0"),
        (lambda s: regard.entmax(s, math.inf), ValueError, r"^alpha: got inf"),
        (lambda s: regard.entmax(s, "2"), TypeError, r"^alpha: got '2'"),
        (lambda s: regard.entmax(s, torch.tensor(0.0)), ValueError, r"^alpha: got a tensor with values from 0.0"),
        (lambda s: regard.normmax(s, 1), ValueError, r"^alpha: got 1, expected a finite number > 1"),
        (lambda s: regard.normmax(s, torch.tensor(1.0)), ValueError, r"^alpha: got a tensor with values from 1.0"),
        (lambda s: regard.normmax(s, torch.ones(4)), ValueError, r"^alpha: got shape \(1, 4\), expected size 1 along"),
        (lambda s: regard.budget_sparsemax(s, -1), ValueError, r"^budget: got -1, expected a finite number >= 0"),
        (lambda s: regard.budget_sparsemax(s, -torch.ones(3, 1)), ValueError, r"^budget: got a negative entry"),
        (lambda s: regard.budget_sparsemax(s, torch.ones(4)), ValueError, r"^budget: got shape \(1, 4\), expected"),
        (lambda s: regard.entmax(s, torch.ones(4)), ValueError, r"^alpha: got shape \(1, 4\), expected size 1 along"),
        (
            lambda s: regard.entmax(s, torch.ones(2, 1)),
            ValueError,
            r"^alpha: got shape \(2, 1\), expected a shape that",
        ),
        (lambda s: regard.mean(s, mask=s), TypeError, r"^mask: got torch.float32, expected a boolean tensor"),
        (lambda s: regard.softmax(s, mask=s[:2] > 0), ValueError, r"^mask: got shape \(2, 4\), expected a shape that"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.zeros(3, 4))
