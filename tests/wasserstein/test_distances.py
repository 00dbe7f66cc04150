"""Distances: against POT, brute force and closed forms; metric properties; gradients where they are delicate."""

import math
import sys

import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.transport import assignment_wasserstein, bures_squared, quantile_wasserstein
from torch import Tensor

from regard.wasserstein import (
    bures_w2,
    entropic_wasserstein,
    exact_wasserstein,
    factored_w2,
    gaussian_w2,
    histogram_wasserstein,
    sliced_wasserstein,
    wasserstein_1d,
)

seeds = st.integers(0, 10**6)


def doubles(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def masses(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64).softmax(-1)


def covariances(*shape: int) -> Tensor:
    x = doubles(*shape, shape[-1])
    return x @ x.mT / shape[-1]


def directions(d: int, count: int) -> Tensor:
    """Always the same unit vectors, in columns."""
    draw = torch.randn(d, count, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return torch.nn.functional.normalize(draw, dim=0)


# Each family: how to draw a batch of Lq distributions as a tuple of tensors, and the distance of two such tuples.
FAMILIES = {
    "gaussian_w2": (lambda n: (doubles(n, 3), doubles(n, 3).abs()), gaussian_w2),
    "bures_w2": (lambda n: (doubles(n, 3), covariances(n, 3)), bures_w2),
    "factored_w2": (lambda n: (doubles(n, 3), doubles(n, 3, 2)), factored_w2),
    "wasserstein_1d": (lambda n: (doubles(n, 6),), lambda x, y, **k: wasserstein_1d(x, y, 1.5, **k)),
    "weighted": (
        lambda n: (doubles(n, 6), masses(n, 6)),
        lambda x, a, y, b, **k: wasserstein_1d(x, y, 2, a, b, **k),
    ),
    "histogram": (lambda n: (masses(n, 6),), histogram_wasserstein),
    "histogram p=2": (lambda n: (masses(n, 6),), lambda a, b, **k: histogram_wasserstein(a, b, p=2, **k)),
    "sliced": (
        lambda n: (doubles(n, 4, 3),),
        lambda x, y, **k: sliced_wasserstein(x, y, torch.eye(3, dtype=torch.float64), **k),
    ),
    "weighted sliced": (
        lambda n: (doubles(n, 4, 3), masses(n, 4)),
        lambda x, a, y, b, **k: sliced_wasserstein(x, y, directions(3, 5), 1.5, x_weights=a, y_weights=b, **k),
    ),
    "entropic": (lambda n: (doubles(n, 4, 2),), lambda x, y, **k: entropic_wasserstein(x, y, 2.0, **k)),
    "exact": (lambda n: (doubles(n, 4, 2),), exact_wasserstein),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


@each_family
def test_symmetry_zero_and_pairs(family: str) -> None:
    draw, distance = FAMILIES[family]
    x, y = draw(4), draw(3)
    pairs = distance(*x, *y, pairwise=True)
    assert pairs.shape == (4, 3)
    assert (pairs > 0).all()
    for i in range(4):
        for j in range(3):
            one = distance(*(t[i] for t in x), *(t[j] for t in y))
            torch.testing.assert_close(one, pairs[i, j], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(distance(*y, *x, pairwise=True), pairs.mT, rtol=1e-7, atol=1e-7)
    assert distance(*x, *x).abs().max() < 1e-6
    together = distance(*(t.expand(2, *t.shape) for t in x), *y, pairwise=True)
    torch.testing.assert_close(together, pairs.expand(2, 4, 3))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "entropic"])
@given(seed=seeds)
@settings(max_examples=15)
def test_triangle_inequality(family: str, seed: int) -> None:
    torch.manual_seed(seed)
    draw, distance = FAMILIES[family]
    x, y, z = draw(2), draw(2), draw(2)
    assert (distance(*x, *z) <= distance(*x, *y) + distance(*y, *z) + 1e-9).all()


@pytest.mark.parametrize(("n", "m"), [(5, 5), (5, 8)])
@pytest.mark.parametrize("p", [1, 2])
def test_weighted_slices_equal_those_of_pot(n: int, m: int, p: float) -> None:
    x, y, lines = doubles(n, 3), doubles(m, 3), directions(3, 20)
    a, b = masses(n), masses(m)
    for wx, wy in ((a, b), (a, None), (None, b)):
        want = ot.sliced_wasserstein_distance(x, y, wx, wy, projections=lines, p=p)
        torch.testing.assert_close(sliced_wasserstein(x, y, lines, p, x_weights=wx, y_weights=wy), want)
    whole = sliced_wasserstein(x, y, lines, p, x_weights=torch.eye(n)[0].double(), y_weights=torch.eye(m)[1].double())
    torch.testing.assert_close(whole, sliced_wasserstein(x[:1], y[1:2], lines, p))
    with pytest.raises(ValueError, match=r"^x_weights: got a sum of 2"):
        sliced_wasserstein(x, y, lines, p, x_weights=2 * a)
    with pytest.raises(ValueError, match=r"^eps: got 0, .*exact_wasserstein"):
        entropic_wasserstein(x, y, 0)


@each_family
def test_gradients(family: str) -> None:
    draw, distance = FAMILIES[family]
    x, y = draw(2), draw(3)
    if family == "entropic":

        def distance(x: Tensor, y: Tensor, **k: bool) -> Tensor:
            return entropic_wasserstein(x, y, 3.0, tol=1e-12, **k)

    leaves = [t.clone().requires_grad_() for t in (*x, *y)]
    if family.startswith(("weighted", "histogram")):  # also the weighted slices
        # Only along directions that keep the sum is a weight free to move.
        is_mass = [i for i, t in enumerate(leaves) if (t > 0).all()]
        leaves = [t.detach().log().requires_grad_() if i in is_mass else t for i, t in enumerate(leaves)]

        def free(*ts: Tensor) -> Tensor:
            return distance(*(t.softmax(-1) if i in is_mass else t for i, t in enumerate(ts)), pairwise=True)

        torch.autograd.gradcheck(free, leaves)
    else:
        torch.autograd.gradcheck(lambda *ts: distance(*ts, pairwise=True), leaves)


@each_family
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_at_distance_zero_is_zero(family: str, dtype: torch.dtype) -> None:
    draw, distance = FAMILIES[family]
    x = [t.to(dtype).requires_grad_() for t in draw(3)]
    y = [t.detach().clone() for t in x]
    if family == "bures_w2":  # coinciding eigenvalues, and a singular covariance
        with torch.no_grad():
            for t in (x[1], y[1]):
                t[0] = torch.eye(3)
                t[1] = torch.diag(torch.tensor([1.0, 1.0, 0.0]))
    distances = distance(*x, *y)
    assert distances.max() < (1e-6 if dtype == torch.float64 else 2e-3)
    grads = torch.autograd.grad(distances.sum(), x)
    assert all(g.isfinite().all() for g in grads)
    pairs = distance(*x, *y, pairwise=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad((pairs**2).sum(), x))
    if family in ("gaussian_w2", "wasserstein_1d", "histogram", "exact", "sliced"):
        assert all(g.eq(0).all() for g in grads)


@each_family
def test_half_precision_answers_in_its_dtype(family: str) -> None:
    draw, distance = FAMILIES[family]
    x, y = [t.bfloat16() for t in draw(3)], [t.bfloat16() for t in draw(3)]
    if family in ("weighted", "histogram", "histogram p=2", "weighted sliced"):
        n = x[-1].shape[-1]
        x[-1], y[-1] = (torch.tensor([[0.5, 0.25, 0.25, 0, 0, 0][:n]]).bfloat16().expand(3, n) for _ in range(2))
    answer = distance(*x, *y)
    assert answer.dtype == torch.bfloat16
    exact = distance(*(t.double() for t in x), *(t.double() for t in y))
    torch.testing.assert_close(answer.double(), exact, rtol=1e-2, atol=1e-2)


@given(seed=seeds, n=st.integers(1, 8), m=st.integers(1, 8), p=st.sampled_from([1.0, 1.5, 2.0, 3.0]))
def test_on_the_line_it_equals_pot(seed: int, n: int, m: int, p: float) -> None:
    torch.manual_seed(seed)
    x, y, a, b = doubles(n), doubles(m), masses(n), masses(m)
    expected = ot.wasserstein_1d(x.numpy(), y.numpy(), a.numpy(), b.numpy(), p=p) ** (1 / p)
    assert abs(float(wasserstein_1d(x, y, p, a, b)) - float(expected)) < 1e-6
    expected = ot.wasserstein_1d(x.numpy(), y.numpy(), p=p) ** (1 / p)
    assert abs(float(wasserstein_1d(x, y, p)) - float(expected)) < 1e-6


def test_on_the_line_it_is_the_integral_over_quantiles() -> None:
    x, y, a, b = doubles(5), doubles(7), masses(5), masses(7)
    for p in (1, 2):
        assert abs(wasserstein_1d(x, y, p, a, b) - quantile_wasserstein(x, y, a, b, p)) < 1e-4


@given(seed=seeds, p=st.sampled_from([1.0, 2.0]))
def test_histograms_equal_a_linear_program(seed: int, p: float) -> None:
    torch.manual_seed(seed)
    a, b, support = masses(6), masses(6), doubles(6).sort().values
    cost = (support[:, None] - support).abs() ** p
    expected = float(ot.emd2(a.numpy() / a.sum().item(), b.numpy() / b.sum().item(), cost.numpy())) ** (1 / p)
    assert abs(float(histogram_wasserstein(a, b, support, p)) - expected) < 1e-6


@given(seed=seeds, d=st.integers(1, 5))
def test_gaussians_equal_pot(seed: int, d: int) -> None:
    torch.manual_seed(seed)
    m1, m2, c1, c2 = doubles(d), doubles(d), covariances(d, d)[0], covariances(d, d)[0]
    expected = float(ot.gaussian.bures_wasserstein_distance(m1.numpy(), m2.numpy(), c1.numpy(), c2.numpy()))
    assert abs(float(bures_w2(m1, c1, m2, c2)) - expected) < 1e-6
    assert abs(float(bures_w2(m1, c1, m2, c2)) ** 2 - bures_squared(m1, c1, m2, c2)) < 1e-6
    l1, l2 = (torch.linalg.cholesky(c + 1e-3 * torch.eye(d)) for c in (c1, c2))
    torch.testing.assert_close(factored_w2(m1, l1, m2, l2), bures_w2(m1, l1 @ l1.T, m2, l2 @ l2.T))
    s1, s2 = doubles(d).abs(), doubles(d).abs()
    expected = bures_w2(m1, torch.diag(s1**2), m2, torch.diag(s2**2))
    torch.testing.assert_close(gaussian_w2(m1, s1, m2, s2), expected)


def test_bures_is_accurate_near_zero_and_has_its_gradient_at_equal_eigenvalues() -> None:
    c = covariances(3, 3)[0].float()
    assert bures_w2(torch.zeros(3), c, torch.zeros(3), c) < 1e-5
    flat = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    assert bures_w2(torch.zeros(2), flat, torch.zeros(2), flat) < 1e-5
    assert bures_w2(torch.zeros(2), flat, torch.zeros(2), 0 * flat) == pytest.approx(2**0.5)
    near = torch.eye(3, dtype=torch.float64) * 2
    near.requires_grad_()
    other = covariances(3, 3)[0]
    zero = torch.zeros(3, dtype=torch.float64)

    def squared(c: Tensor) -> Tensor:
        return bures_w2(zero, (c + c.T) / 2, zero, other) ** 2

    torch.autograd.gradcheck(squared, (near,))


@given(seed=seeds, p=st.sampled_from([1.0, 2.0, 3.0]))
@settings(max_examples=15)
def test_exact_equals_brute_force_and_pot(seed: int, p: float) -> None:
    torch.manual_seed(seed)
    x, y = doubles(5, 2), doubles(5, 2)
    assert abs(float(exact_wasserstein(x, y, p)) - assignment_wasserstein(x, y, p)) < 1e-6
    a, b, z = masses(5), masses(4), doubles(4, 2)
    cost = (torch.cdist(x, z) ** p).numpy()
    expected = ot.emd2(a.numpy() / a.sum().item(), b.numpy() / b.sum().item(), cost) ** (1 / p)
    assert abs(float(exact_wasserstein(x, z, p, a, b)) - expected) < 1e-6


def test_weights_of_exact_and_entropic_have_gradients() -> None:
    x, y, a, b = doubles(5, 2), doubles(4, 2), doubles(5).requires_grad_(), doubles(4).requires_grad_()
    torch.autograd.gradcheck(lambda a, b: exact_wasserstein(x, y, 2, a.softmax(-1), b.softmax(-1)), (a, b))

    def entropic(a: Tensor, b: Tensor) -> Tensor:
        return entropic_wasserstein(x, y, 3.0, 2, a.softmax(-1), b.softmax(-1), tol=1e-12)

    torch.autograd.gradcheck(entropic, (a, b))


@given(seed=seeds, eps=st.sampled_from([0.5, 2.0]))
@settings(max_examples=10)
def test_entropic_equals_pot(seed: int, eps: float) -> None:
    torch.manual_seed(seed)
    x, y, a, b = doubles(5, 2), doubles(4, 2), masses(5), masses(4)
    settings_ = {"eps": eps, "x_weights": a, "y_weights": b, "iterations": 20_000, "tol": 1e-9}
    cost = (torch.cdist(x, y) ** 2).numpy()
    expected = ot.sinkhorn2(
        a.numpy(), b.numpy(), cost, eps, method="sinkhorn_log", numItermax=20_000, stopThr=1e-9, warn=False
    )
    assert abs(float(entropic_wasserstein(x, y, debiased=False, **settings_) ** 2) - float(expected)) < 1e-6


def test_the_entropic_divergence_is_the_optimal_value_of_its_problem() -> None:
    x, y, eps = doubles(5, 2), doubles(4, 2), 2.0

    def value(x: Tensor, y: Tensor) -> float:
        cost = torch.cdist(x, y) ** 2
        a, b = (torch.full((len(z),), 1 / len(z), dtype=torch.float64) for z in (x, y))
        plan = torch.from_numpy(ot.sinkhorn(a.numpy(), b.numpy(), cost.numpy(), eps, numItermax=20_000, stopThr=1e-11))
        return float((plan * cost).sum() + eps * (plan * (plan / a[:, None] / b).log()).sum())

    expected = value(x, y) - value(x, x) / 2 - value(y, y) / 2
    assert float(entropic_wasserstein(x, y, eps) ** 2) == pytest.approx(expected, abs=1e-7)


def test_sliced() -> None:
    x, y = doubles(6, 3), doubles(4, 3)
    directions = torch.nn.functional.normalize(doubles(3, 10), dim=0)
    expected = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), projections=directions.numpy(), p=2)
    assert abs(float(sliced_wasserstein(x, y, directions)) - float(expected)) < 1e-6
    same = sliced_wasserstein(x, y, 20, generator=torch.Generator().manual_seed(3))
    assert same == sliced_wasserstein(x, y, 20, generator=torch.Generator().manual_seed(3))
    # In one dimension every direction sees the whole distance; and it never exceeds the exact one.
    torch.testing.assert_close(sliced_wasserstein(x[:, :1], y[:, :1], p=1), wasserstein_1d(x[:, 0], y[:, 0], 1))
    assert sliced_wasserstein(x, y) <= exact_wasserstein(x, y)
    pairs = sliced_wasserstein(doubles(2, 6, 3), doubles(3, 4, 3), directions, pairwise=True)
    assert pairs.shape == (2, 3)


def test_translation_is_the_distance() -> None:
    x = doubles(5, 3)
    shift = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    for distance in (exact_wasserstein, entropic_wasserstein):
        torch.testing.assert_close(distance(x, x + shift), torch.tensor(5.0, dtype=torch.float64), rtol=1e-6, atol=0)


def test_exact_without_pot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ImportError, match=r"pip install .*\[transport\]"):
        exact_wasserstein(doubles(3, 2), doubles(3, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gaussian_w2(doubles(2), -doubles(2).abs(), doubles(2), doubles(2).abs()), "s1: got a negative"),
        (lambda: gaussian_w2(doubles(2), doubles(3), doubles(2), doubles(2)), "s1: got shape"),
        (lambda: gaussian_w2(doubles(2), masses(2), doubles(3), masses(3)), "m2: got shape"),
        (lambda: gaussian_w2(doubles(2), masses(2), doubles(2), masses(2), pairwise=True), "m1: got shape"),
        (lambda: bures_w2(doubles(2), doubles(3, 3), doubles(2), doubles(2, 2)), "c1: got shape"),
        (lambda: wasserstein_1d(doubles(3), doubles(3), 0.5), "p: got 0.5"),
        (lambda: wasserstein_1d(doubles(3), doubles(3), x_weights=torch.ones(3)), "x_weights: got a sum of 3"),
        (lambda: wasserstein_1d(doubles(3) * math.nan, doubles(3)), "x: got NaN"),
        (lambda: wasserstein_1d(doubles(2, 3), doubles(3, 3)), "y: got shape"),
        (lambda: histogram_wasserstein(masses(3), masses(4)), "b: got shape"),
        (lambda: histogram_wasserstein(masses(3), doubles(3)), "b: got a"),
        (lambda: histogram_wasserstein(masses(3), masses(3), -torch.arange(3.0)), "support: got places out of order"),
        (lambda: histogram_wasserstein(masses(3), masses(3), torch.arange(4.0)), "support: got shape"),
        (lambda: sliced_wasserstein(doubles(3, 2), doubles(3, 2), torch.eye(3)), "directions: got shape"),
        (lambda: entropic_wasserstein(doubles(3, 2), doubles(3, 2), eps=0.0), "eps: got 0"),
        (lambda: entropic_wasserstein(doubles(3, 2), doubles(3, 1)), "y: got shape"),
    ],
)
def test_complaints(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
