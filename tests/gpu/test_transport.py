"""The Triton kernel of Sinkhorn's iterations, in the corrected interpreter, beside the plain one in float64."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from interpreter import interpreted
from waits import Waits, as_on_a_device

import regard
from regard import native
from regard.gpu import transport
from regard.maps.sinkhorn.triton import sinkhorn_triton


def scores(*shape, seed=0):
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 1


def on_gpu(s, *args, noise=0.0, **options):
    with regard.checks(False), interpreted(noise) as counts, native.switched_off(), as_on_a_device():
        return regard.sinkhorn(s, *args, **options), counts


def error(found, s, *args, **options):
    """Of the plan, relative to its largest entry."""
    with native.switched_off():
        expected = regard.sinkhorn(s.double(), *args, **options).plan
    return float((found.plan.double() - expected).abs().max() / expected.abs().max())


CASES = [
    ((1, 1), 1.0, 1),
    ((7, 1), 0.05, 3),
    ((1, 8), 0.05, 3),
    ((5, 3), 1.0, 3),
    ((33, 70), 0.05, 3),
    ((2, 1, 50, 20), 0.05, 6),
    ((300, 16), 0.001, 3),
    ((40, 300), 0.001, 3),
]


@pytest.mark.parametrize("case", CASES)
def test_plans(case):
    shape, eps, iterations = case
    noise = 2.0**-22 if shape[-1] > 3 else 0.0
    s = scores(*shape)
    found, counts = on_gpu(s, eps, iterations, noise=noise)
    assert error(found, s, eps, iterations) <= (5e-6 if eps == 0.001 else 2e-6)
    assert counts.launches == iterations + 1


def test_masks_masses_and_huge_scores():
    s = scores(20, 12)
    mask = torch.rand(20, 12, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[3], mask[:, 5] = False, False
    found, _ = on_gpu(s, 0.05, 4, mask=mask)
    assert error(found, s, 0.05, 4, mask=mask) <= 2e-6
    assert not bool(found.plan[3].any() | found.plan[:, 5].any())
    rows, columns = torch.arange(20.0) / 190, torch.arange(12.0).flip(0) / 66
    found, _ = on_gpu(s, 0.05, 4, rows=rows, columns=columns)
    assert error(found, s, 0.05, 4, rows=rows, columns=columns) <= 2e-6
    # A column that every row is far from: its sums underflow beside the others, and its logarithms do not.
    far = s.clone()
    far[:, 2] -= 30
    for scaled, eps in ((far, 0.05), (1e4 * s, 1.0)):
        found, _ = on_gpu(scaled, eps, 3)
        assert bool(found.plan.isfinite().all())
        assert error(found, scaled, eps, 3) <= 1e-4
        torch.testing.assert_close(found.plan.sum(-1), torch.full((20,), 0.05))


def test_gradients_potentials_and_residual():
    s = scores(6, 5).requires_grad_()
    with native.switched_off():
        expected = regard.sinkhorn(s, 0.2, 3)
        (slope,) = torch.autograd.grad(expected.plan.square().sum() + expected.potentials[1].sin().sum(), s)
    found, _ = on_gpu(s, 0.2, 3)
    with as_on_a_device(), Waits() as waits:
        (ours,) = torch.autograd.grad(found.plan.square().sum() + found.potentials[1].sin().sum(), s)
    assert waits.names == []
    torch.testing.assert_close(ours, slope, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.potentials, expected.potentials, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.residual, expected.residual.to(found.residual.dtype), rtol=0, atol=2e-6)


def test_traffic_and_waits():
    """Scores are read once for each iteration and once for the plan, which is written; nothing waits."""
    s = scores(256, 128)
    with regard.checks(False), interpreted() as counts, native.switched_off(), as_on_a_device(), Waits() as waits:
        regard.sinkhorn(s, 0.05, 3)
    assert waits.names == []
    assert counts.launches == 4
    bytes_of_scores = s.numel() * 4
    assert counts.read <= 4.2 * bytes_of_scores
    assert counts.written <= 1.3 * bytes_of_scores


def test_wider_rows_take_the_plain_way(monkeypatch):
    monkeypatch.setattr("regard.maps.sinkhorn.triton.MOST_COLUMNS", 4)
    found, counts = on_gpu(scores(4, 5), 0.05, 2)
    assert counts.launches == 0
    assert error(found, scores(4, 5), 0.05, 2) <= 2e-6


def test_operator():
    s, a = scores(2, 6, 5), torch.full((2, 6), 1 / 6)
    g, rest, top = torch.zeros(2, 5), torch.zeros(2, 5), torch.ones(2)
    with interpreted():
        for first, write in ((True, False), (False, True)):
            torch.library.opcheck(sinkhorn_triton, (s, g, rest, a, top, 0.1, first, write))
    assert transport.tiles(6, 5) == (1, 256, 16)
