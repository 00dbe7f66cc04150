"""The number of Newton's steps that is known beforehand is enough for every row, and nothing waits for a device."""

import math

import pytest
import torch
from reference import maps as reference
from waits import Waits, as_on_a_device

import regard
from regard import gpu, native
from regard.maps.entmax import steps, threshold

ALPHAS = [0.3, 1.02, 1.2, 1.3, 1.5, 1.8, 2.0]


def rows_that_climb_slowly(n, alpha):
    """Scores in geometric progressions, of which a step leaves out a few at a time, and rows near them."""
    place = torch.arange(n, dtype=torch.float64)
    scale = 1 / max(abs(alpha - 1), 0.1)
    ratios = torch.tensor([0.3, 0.5, 0.7, 0.9, 0.97, 0.999], dtype=torch.float64)[:, None]
    falling = scale * (ratios**place - 1)  # many near the edge of the support
    blocks = -scale * (1 - 2.0 ** -torch.log2(place + 1).floor())  # 1, 2, 4, 8 ... entries of one score
    random = torch.randn(4, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return torch.cat([falling, -falling.flip(-1), blocks[None], 1.2 * blocks[None], random, 8 * random])


def steps_needed(s, alpha, close):
    """How many steps in float64 until no row sums to more than 1 + close, from the lowest start."""
    delta, x = alpha - 1, s - s.amax(-1, keepdim=True)
    lam = torch.zeros_like(x[:, :1])
    for step in range(200):
        base = (1 + delta * (x - lam)).clamp(min=0)
        p = torch.where(base > 0, base ** (1 / delta), 0.0)
        total = p.sum(-1, keepdim=True)
        if bool((total <= 1 + close).all()):
            return step
        slope = torch.where(base > 0, p / base, 0.0).sum(-1, keepdim=True)
        lam = lam + (total - total ** (1 - delta)) / delta / slope
    raise AssertionError("never")


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", [2, 17, 1000, 30000])
def test_the_bound_holds(alpha, n):
    close = 2.0**-21
    assert steps_needed(rows_that_climb_slowly(n, alpha), alpha, close) <= steps.newton_steps(n, abs(alpha - 1), close)


def test_the_bound_is_not_idle():
    """More than a third of its steps are needed somewhere."""
    rows = rows_that_climb_slowly(1000, 2.0)
    assert steps_needed(rows, 2.0, 2.0**-21) > steps.newton_steps(1000, 1.0, 2.0**-21) / 3


@pytest.mark.parametrize("alpha", [*ALPHAS, 2.5, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fixed_number_of_steps_is_enough(alpha, dtype):
    s = rows_that_climb_slowly(700, alpha).to(dtype)
    with regard.checks(False), native.switched_off(), as_on_a_device():
        p = regard.entmax(s, alpha)
        each = regard.entmax(s, torch.full((len(s), 1), alpha, dtype=dtype))
    expected = reference.entmax(s.double(), alpha)
    # The judge halves intervals of a threshold, which above two has fewer digits than a weight.
    close = 1e-6 if dtype == torch.float32 else 1e-12 if alpha <= 2 else 1e-9
    for ours in (p, each):
        assert float((ours.double() - expected).abs().max()) <= close


def test_fewer_steps_are_seen(monkeypatch):
    monkeypatch.setattr(threshold, "newton_steps", lambda n, rate, close: 4)
    s = rows_that_climb_slowly(700, 2.0)
    with regard.checks(False), native.switched_off(), as_on_a_device():
        assert float((regard.entmax(s, 2.0) - reference.entmax(s, 2.0)).abs().max()) > 1e-6


@pytest.mark.parametrize("alpha", [0.5, 1.1, 1.3, 1.5, 2.0, 3.0, "each"])
def test_rows_wait_for_nothing(alpha):
    s = torch.randn(8, 1024, requires_grad=True)
    alpha = torch.linspace(0.5, 3, 8)[:, None] if alpha == "each" else alpha
    mask = torch.rand(8, 1024) < 0.9
    with regard.checks(False), native.switched_off(), gpu.kernels_for(None), as_on_a_device(), Waits() as waits:
        regard.entmax(s, alpha, mask=mask).square().sum().backward()
    assert waits.names == []


@pytest.mark.parametrize("map", ["softmax", "sparsemax", "entmax", regard.Entmax(1.3), "mean"])
@pytest.mark.parametrize("blocks", [False, True])
def test_attend_waits_for_nothing(map, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 500)
    q, k, v = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in range(3))
    mask = torch.rand(20, 20) < 0.9
    with regard.checks(False), native.switched_off(), gpu.kernels_for(None), as_on_a_device(), Waits() as waits:
        regard.attend(q, k, v, map=map, mask=mask if map != "mean" else None).sum().backward()
    assert waits.names == []


def test_numbers_of_operations():
    """Counted for a matrix of 4,096 x 1,024: a loop that looks needs some 900, and 75 waits."""
    s = torch.zeros(4096, 1024)
    most = {2.0: 230, 1.5: 190, 1.3: 320, 1.1: 260}
    for alpha, limit in most.items():
        with regard.checks(False), native.switched_off(), gpu.kernels_for(None), as_on_a_device(), Waits() as waits:
            regard.entmax(s, alpha)
        assert waits.operations <= limit
        assert waits.names == []


def test_rows_without_entries_and_with_nan():
    s = torch.tensor([[-math.inf] * 3, [math.nan, 0.0, 1.0], [1.0, 0.0, -math.inf]])
    with regard.checks(False), native.switched_off(), as_on_a_device():
        for alpha in (0.5, 1.1, 1.3, 1.5, 2.0, 3.0, torch.full((3, 1), 1.7)):
            p = regard.entmax(s, alpha)
            assert not bool(p[0].any())
            assert bool(p[1].isnan().any())
            assert float(p[2].sum()) == pytest.approx(1)
