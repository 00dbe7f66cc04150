"""Sinkhorn as the centering of DINOv2's and iBOT's teacher: the same where the usual loop is finite, right beyond."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.swav import teacher_centering

import regard


def make_logits(samples, prototypes, scale=1.0, seed=0):
    return scale * torch.randn(samples, prototypes, generator=torch.Generator().manual_seed(seed))


def apart(p, q):
    """Total variation, averaged over rows."""
    return float((p.double() - q.double()).abs().sum(-1).mean() / 2)


@pytest.mark.parametrize("temperature", [0.04, 0.07])
@pytest.mark.parametrize("iterations", [1, 3, 5])
@pytest.mark.parametrize(("samples", "prototypes"), [(8, 5), (5, 8), (64, 96), (1, 7), (7, 1)])
def test_the_targets_of_the_teacher(temperature, iterations, samples, prototypes):
    logits = make_logits(samples, prototypes)
    expected = teacher_centering(logits.double(), temperature, iterations)
    got = regard.sinkhorn(logits, temperature, iterations).weights
    torch.testing.assert_close(got.double(), expected, rtol=2e-4, atol=1e-6)
    exact = regard.sinkhorn(logits.double(), temperature, iterations).weights
    torch.testing.assert_close(exact, expected, rtol=1e-9, atol=1e-12)


@given(scale=st.floats(0.01, 3.0), seed=st.integers(0, 10_000), samples=st.integers(1, 9), prototypes=st.integers(1, 9))
def test_any_batch_of_a_teacher(scale, seed, samples, prototypes):
    logits = make_logits(samples, prototypes, scale, seed).double()
    expected = teacher_centering(logits, 0.04, 3)
    torch.testing.assert_close(regard.sinkhorn(logits, 0.04, 3).weights, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [5.0, 20.0])
def test_it_stays_right_where_the_loop_overflows(dtype, scale):
    """Logits that the half type holds; the judge is float64 and subtracts the maximum of the batch."""
    logits = make_logits(32, 48, scale).to(dtype)
    assert not teacher_centering(logits, 0.04, 3).isfinite().all()
    got = regard.sinkhorn(logits, 0.04, 3).weights
    expected = regard.sinkhorn(logits.double(), 0.04, 3).weights
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-2 if dtype == torch.bfloat16 else 2e-3)
    torch.testing.assert_close(got.double().sum(-1), torch.ones(32).double(), rtol=0, atol=1e-2)
    if scale == 5.0:  # float64 holds these exponentials, no narrower type does
        wide = teacher_centering(logits.double(), 0.04, 3, shift="batch")
        torch.testing.assert_close(expected, wide, rtol=1e-6, atol=1e-9)


def loop(logits, iterations):
    """`teacher_centering` at T = 0.04, vectorised to be quick."""
    plan = torch.exp(logits / 0.04)
    for _ in range(iterations):
        plan = plan / plan.sum(0, keepdim=True) / plan.shape[1]
        plan = plan / plan.sum(1, keepdim=True) / plan.shape[0]
    return plan * plan.shape[0]


def test_the_figures_of_a_batch_of_128():
    """Mean of four seeds: 0.39 in total variation, 28 % of the argmaxes; ours has the published ones."""
    distances, moved = [], []
    for seed in range(4):
        logits = make_logits(128, 1024, seed=seed).double()
        published, row = loop(logits, 3), loop(logits - logits.amax(-1, keepdim=True), 3)
        assert apart(published, regard.sinkhorn(logits, 0.04, 3).weights) < 1e-9
        distances.append(apart(published, row))
        moved.append(float((published.argmax(-1) != row.argmax(-1)).double().mean()))
    assert sum(distances) / 4 == pytest.approx(0.39, abs=0.005)
    assert sum(moved) / 4 == pytest.approx(0.28, abs=0.01)


def test_the_maximum_of_a_row_changes_the_targets_and_that_of_the_batch_does_not():
    """At 256 samples and 1024 prototypes with normal logits."""
    logits = make_logits(256, 1024).double()
    published = loop(logits, 3)
    batch, row = loop(logits - logits.max(), 3), loop(logits - logits.amax(-1, keepdim=True), 3)
    ours = regard.sinkhorn(logits, 0.04, 3).weights
    assert apart(published, batch) < 1e-9
    assert apart(published, ours) < 1e-9
    assert apart(published, row) == pytest.approx(0.375, abs=0.025)
    assert float((published.argmax(-1) != row.argmax(-1)).double().mean()) == pytest.approx(0.28, abs=0.05)


def test_both_starts_end_at_the_same_plan():
    logits = make_logits(12, 9).double()
    batch, row = (teacher_centering(logits, 0.2, 400, shift) for shift in ("batch", "row"))
    assert apart(batch, row) < 1e-6
    three = [teacher_centering(logits, 0.2, 3, shift) for shift in ("batch", "row")]
    assert apart(*three) > 1e-2


def test_masked_patches_among_padding():
    """Rows of padding get nothing, and the others what they get alone."""
    logits = make_logits(20, 16)
    mask = torch.arange(20).unsqueeze(-1) < 13
    padded = regard.sinkhorn(logits, 0.07, 3, mask=mask.expand(20, 16)).weights
    assert (padded[13:] == 0).all()
    torch.testing.assert_close(padded[:13], regard.sinkhorn(logits[:13], 0.07, 3).weights)
