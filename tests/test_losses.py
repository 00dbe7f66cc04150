"""Fenchel-Young losses: their definition, their gradient, their edges."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import maps as reference
from torch.autograd import gradcheck, gradgradcheck

import regard

ALPHAS = [0.3, 1.0, 1.25, 1.5, 2.0, 3.0]
rows = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=20)


def by_definition(s, y, alpha):
    """Equation 3.1 with Omega* as the value of the maximum, found by the bisection twin."""
    p = reference.entmax(s, alpha)
    return (s * p).sum(-1) + reference.tsallis(p, alpha) - reference.tsallis(y, alpha) - (s * y).sum(-1)


@given(rows, st.sampled_from(ALPHAS), st.data())
def test_equals_its_definition_and_is_never_negative(row, alpha, data):
    s = torch.tensor([row], dtype=torch.float64)
    index = torch.tensor([data.draw(st.integers(0, len(row) - 1))])
    one_hot = torch.eye(len(row), dtype=s.dtype)[index]
    soft = torch.softmax(torch.randn(1, len(row), dtype=s.dtype), -1)
    for target, y in ((index, one_hot), (one_hot, one_hot), (soft, soft)):
        loss = regard.entmax_loss(s, target, alpha)
        assert loss >= -1e-12
        torch.testing.assert_close(loss, by_definition(s, y, alpha)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient_is_map_minus_target(alpha):
    """Equation 3.2."""
    s = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 9, (6,))
    regard.entmax_loss(s, target, alpha, reduction="sum").backward()
    torch.testing.assert_close(s.grad, regard.entmax(s, alpha) - torch.eye(9, dtype=s.dtype)[target])
    assert gradcheck(lambda s: regard.entmax_loss(s, target, alpha), s)
    assert gradgradcheck(lambda s: regard.entmax_loss(s, target, alpha), s)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.25, 1.5, 2.0])
def test_gradient_in_a_distribution(alpha):
    s = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda s, t: regard.entmax_loss(s, torch.softmax(t, -1), alpha), (s, logits))


@given(rows, st.sampled_from([1.2, 2.0, 7.0, 60.0]), st.data())
def test_the_loss_of_normmax_equals_its_definition(row, alpha, data):
    s = torch.tensor([row], dtype=torch.float64)
    index = torch.tensor([data.draw(st.integers(0, len(row) - 1))])
    one_hot = torch.eye(len(row), dtype=s.dtype)[index]
    soft = torch.softmax(torch.randn(1, len(row), dtype=s.dtype), -1)
    p = reference.normmax(s, alpha)
    for target, y in ((index, one_hot), (soft, soft)):
        want = (s * (p - y)).sum() - torch.linalg.vector_norm(p, alpha) + torch.linalg.vector_norm(y, alpha)
        loss = regard.normmax_loss(s, target, alpha)
        assert loss >= -1e-12
        torch.testing.assert_close(loss, want, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_the_loss_of_normmax():
    s = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 9, (6,))
    regard.normmax_loss(s, target, reduction="sum").backward()
    torch.testing.assert_close(s.grad, regard.normmax(s) - torch.eye(9, dtype=s.dtype)[target])
    assert gradcheck(lambda s: regard.normmax_loss(s, target, 3.0), s)
    assert gradgradcheck(lambda s: regard.normmax_loss(s, target), s)


def test_the_norm_of_high_powers_does_not_vanish():
    loss = regard.normmax_loss(torch.zeros(1, 4), torch.tensor([0]), 1000.0)
    torch.testing.assert_close(loss, torch.tensor(1 - 4**0.001 / 4))


@pytest.mark.parametrize("ours", [regard.sparsemax_loss, regard.entmax_loss, regard.normmax_loss])
def test_reductions_have_the_names_of_the_entmax_package(ours):
    s, target = torch.randn(4, 5), torch.tensor([1, -100, 3, 0])
    each = ours(s, target, reduction="none")
    assert each.shape == (4,)
    assert each[1] == 0
    torch.testing.assert_close(ours(s, target, reduction="sum"), each.sum())
    for name in ("mean", "elementwise_mean"):
        torch.testing.assert_close(ours(s, target, reduction=name), each.sum() / 3)


def test_alpha_one_is_cross_entropy():
    s, target = torch.randn(2, 7, 3), torch.randint(0, 7, (2, 3))
    got = regard.entmax_loss(s, target, 1, dim=1)
    torch.testing.assert_close(got, torch.nn.functional.cross_entropy(s, target))


def test_zero_once_the_target_leads_by_one():
    s = torch.tensor([[3.0, 2.0, -5.0]])
    assert regard.sparsemax_loss(s, torch.tensor([0])) == 0
    assert regard.sparsemax_loss(s, torch.tensor([1])) > 0


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_ignored_rows_count_nowhere(reduction):
    s = torch.randn(4, 5, requires_grad=True)
    target = torch.tensor([1, -100, 3, -100])
    got = regard.entmax_loss(s, target, reduction=reduction)
    kept = regard.entmax_loss(s[[0, 2]], target[[0, 2]], reduction=reduction)
    torch.testing.assert_close(got[[0, 2]] if reduction == "none" else got, kept)
    got.sum().backward()
    assert (s.grad[[1, 3]] == 0).all()
    nothing = regard.sparsemax_loss(s, torch.full((4,), 7), ignore_index=7, reduction=reduction)
    assert (nothing == 0).all()


def test_masked_classes_take_no_part():
    s = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, True, False, True, True, False])
    loss = regard.entmax_loss(s, torch.tensor([0, 1, 3, 4]), mask=mask)
    torch.testing.assert_close(loss, regard.entmax_loss(s[:, mask], torch.tensor([0, 1, 2, 3])))
    loss.backward()
    assert (s.grad[:, ~mask] == 0).all()
    assert s.grad.isfinite().all()


@pytest.mark.once
def test_any_axis_half_precision_compile_and_vmap():
    s, target = torch.randn(2, 7, 3), torch.randint(0, 7, (2, 3))
    expected = regard.sparsemax_loss(s, target, dim=1)
    torch.testing.assert_close(regard.sparsemax_loss(s.movedim(1, -1), target), expected)
    half = regard.sparsemax_loss(s.bfloat16(), target, dim=1)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=2e-2, atol=2e-2)
    compiled = torch.compile(lambda s: regard.sparsemax_loss(s, target, dim=1), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(s), expected)
    each = torch.func.vmap(lambda s, t: regard.sparsemax_loss(s, t, dim=0))(s, target)
    torch.testing.assert_close(each.mean(), expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target": torch.tensor([0, 1, 5])}, ValueError, r"^target: got class numbers from 0 to 5, expected 0 to 3"),
        ({"target": torch.tensor([0, 1])}, ValueError, r"^target: got torch.int64 of shape \(2,\)"),
        ({"target": torch.ones(3, 4)}, ValueError, r"^target: got rows that are no distributions"),
        ({"target": torch.ones(3)}, ValueError, r"^target: got shape \(3,\), expected the shape of s"),
        ({"target": [0]}, TypeError, r"^target: got list"),
        ({"reduction": "avg"}, ValueError, r"^reduction: got 'avg', expected 'mean' \(or 'elementwise_mean'\), 'sum'"),
        ({"alpha": 0.0}, ValueError, r"^alpha: got 0.0"),
        ({"s": torch.full((3, 4), torch.nan)}, ValueError, r"^s: got NaN"),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {"s": torch.zeros(3, 4), "target": torch.tensor([0, 1, 2])} | change
    with pytest.raises(error, match=message):
        regard.entmax_loss(**arguments)


@pytest.mark.parametrize("alpha", [0.5, 1 - 1e-9, 1 + 1e-12, 1 + 1e-9, 1 + 1e-6, 1.001, 1.3, 2.0])
def test_float32_near_alpha_one(alpha):
    """The difference of two powers has no digits left there: 1.461 became -0.768."""
    s = torch.tensor([[1.0, 0.2, -0.5], [3.0, -2.0, 0.0]])
    target = torch.tensor([1, 0])
    exact = regard.entmax_loss(s.double(), target, alpha, reduction="none")
    torch.testing.assert_close(
        regard.entmax_loss(s, target, alpha, reduction="none").double(), exact, rtol=1e-5, atol=1e-6
    )
    if abs(alpha - 1) < 1e-5:
        crossed = torch.nn.functional.cross_entropy(s, target, reduction="none")
        torch.testing.assert_close(
            regard.entmax_loss(s, target, alpha, reduction="none"), crossed, rtol=1e-4, atol=1e-5
        )


def test_a_constant_added_to_huge_scores_changes_nothing():
    s, target = torch.tensor([[1.0, 0.0, -2.0]]), torch.tensor([1])
    for alpha in (1.0, 1.5, 2.0):
        shifted = regard.entmax_loss(s + 2.0**20, target, alpha)
        torch.testing.assert_close(shifted, regard.entmax_loss(s, target, alpha), rtol=1e-6, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0, 3.0])
def test_never_negative(alpha):
    s = torch.randn(4000, 7)
    assert (regard.entmax_loss(s, regard.entmax(s, alpha), alpha, reduction="none") >= 0).all()
