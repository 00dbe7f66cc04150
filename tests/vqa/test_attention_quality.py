"""Measures of attention, against values worked out by hand and by scipy."""

import numpy
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import spearmanr

from regard.continuous import Gaussian, Paraboloid
from regard.vqa.attention_quality import attention_map, attention_quality, concatenate, count_modes


def box(size, rows, columns):
    mask = torch.zeros(1, size, size, dtype=torch.bool)
    mask[0, rows, columns] = True
    return mask


def test_measures_of_a_map_and_a_region():
    torch.manual_seed(0)
    maps = torch.rand(1, 12, 12)
    maps = maps / maps.sum()
    region = box(12, slice(2, 6), slice(3, 9))
    quality = attention_quality(maps, region, (4, 4))
    assert float(quality.mass) == pytest.approx(float(maps[region].sum()), abs=1e-6)
    assert float(quality.area) == pytest.approx(24 / 144)
    p, q = maps.flatten().double().numpy(), region.flatten().double().numpy()
    assert float(quality.divergence) == pytest.approx(jensenshannon(p, q, base=2) ** 2, abs=1e-6)
    cells = [x.double().reshape(4, 3, 4, 3).mean((1, 3)).flatten().numpy() for x in (maps, region)]
    assert float(quality.rank) == pytest.approx(spearmanr(*cells).statistic, abs=1e-9)
    bits = -(p * numpy.log2(p)).sum() - numpy.log2(144)
    assert float(quality.entropy) == pytest.approx(bits, abs=1e-5)
    assert float(quality.support) == 1


def test_extremes():
    uniform = torch.full((1, 10, 10), 0.01)
    quality = attention_quality(uniform, box(10, slice(0, 5), slice(None)), (5, 5))
    assert float(quality.mass) == pytest.approx(0.5)
    assert float(quality.entropy) == pytest.approx(0, abs=1e-6)
    assert float(quality.focus) == pytest.approx(0.9, abs=0.011)
    right = box(10, slice(0, 2), slice(0, 2)).float() / 4
    same = attention_quality(right, right > 0, (5, 5))
    assert float(same.divergence) == pytest.approx(0, abs=1e-9)
    assert float(same.mass) == float(same.pointing) == float(same.rank) == 1
    apart = attention_quality(right, box(10, slice(8, 10), slice(8, 10)), (5, 5))
    assert float(apart.divergence) == pytest.approx(1)
    assert float(apart.mass) == float(apart.pointing) == 0


def test_no_region_gives_nan_and_is_left_out_of_means():
    maps = torch.full((2, 10, 10), 0.01)
    regions = torch.cat([box(10, slice(0, 5), slice(None)), torch.zeros(1, 10, 10, dtype=torch.bool)])
    quality = attention_quality(maps, regions, (5, 5))
    assert quality.mass.isnan().tolist() == [False, True]
    assert quality.mean()["mass"] == pytest.approx(0.5)
    both = concatenate([quality, quality])
    assert both.modes.shape == (4,)


def test_pointing_takes_the_middle_of_a_cell_and_a_tolerance():
    weights = torch.zeros(1, 5, 5)
    weights[0, 2, 2] = 1
    maps = attention_map(weights, None, (50, 50))  # the cell is rows and columns 20 to 29, its middle 25
    near = attention_quality(maps, box(50, slice(25, 26), slice(27, 40)), (5, 5))
    far = attention_quality(maps, box(50, slice(25, 26), slice(29, 40)), (5, 5))
    assert float(near.pointing) == 1
    assert float(far.pointing) == 0


def test_maps_hold_the_mass():
    weights = torch.rand(3, 7, 7).flatten(1).softmax(-1).reshape(3, 7, 7)
    spread = attention_map(weights, None, (80, 80))
    assert torch.allclose(spread.sum((1, 2)), torch.ones(3), atol=1e-5)
    mean, covariance = torch.tensor([[0.3, 0.6]]), 0.003 * torch.eye(2).expand(1, 2, 2)
    for density in (Gaussian(mean, covariance), Paraboloid(mean, covariance)):
        shown = attention_map(weights[:1], density, (80, 80))
        assert float(shown.sum()) == pytest.approx(1, abs=2e-3)
        row, column = divmod(int(shown.argmax()), 80)
        assert ((column + 0.5) / 80, (row + 0.5) / 80) == pytest.approx((0.3, 0.6), abs=0.01)
    support = attention_quality(shown, torch.zeros(1, 80, 80, dtype=torch.bool), (7, 7)).support
    assert 0 < float(support) < 0.2


def test_modes():
    grid = torch.zeros(2, 6, 6)
    grid[0, 1, 1], grid[0, 4, 4], grid[0, 4, 1] = 1.0, 0.5, 0.1
    grid[1, 2:4, 2:4] = 0.25
    assert count_modes(grid).tolist() == [2, 1]


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="regions"):
        attention_quality(torch.rand(1, 4, 4), torch.ones(1, 5, 5, dtype=torch.bool), (2, 2))
