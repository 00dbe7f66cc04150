"""Measures of attention, against values worked out by hand and by scipy."""

import numpy
import pytest
import torch
from reference import quality as reference
from scipy.spatial.distance import jensenshannon
from scipy.stats import spearmanr

from regard.continuous import Gaussian, Mixture, Paraboloid
from regard.vqa.attention_quality import attention_map, attention_quality, concatenate, count_modes, quality_of
from regard.vqa.pointing import POINTING_TOLERANCE


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


def regions_of(size, kind):
    height, width = size
    region = torch.zeros(1, height, width, dtype=torch.bool)
    if kind == "box":
        region[0, height // 4 : height // 2, width // 3 : -2] = True
    elif kind == "pixel":
        region[0, height // 2, 1] = True
    else:
        region[0] = torch.rand(height, width, generator=torch.Generator().manual_seed(1)) < 0.2
    return region


def corners(h, w):
    weights = torch.ones(1, h, w)
    weights[0, 0, 0] = weights[0, -1, -1] = 4
    return weights


WEIGHTS = {
    "random": lambda h, w: torch.rand(1, h, w, generator=torch.Generator().manual_seed(2)),
    "even": lambda h, w: torch.ones(1, h, w),
    "sparse": lambda h, w: torch.rand(1, h, w, generator=torch.Generator().manual_seed(3)).sub(0.6).relu(),
    "two peaks": corners,
}


def check_against_pixels(quality, values, region, cells):
    values, region = values[0].double().tolist(), region[0].tolist()
    expected = {
        "mass": reference.mass(values, region),
        "divergence": reference.divergence(values, region),
        "entropy": reference.entropy(values),
        "focus": reference.focus(values),
        "support": reference.support(values),
        "pointing": reference.pointing(values, region, cells, POINTING_TOLERANCE),
        "area": sum(map(sum, region)) / (len(region) * len(region[0])),
    }
    found = {name: float(getattr(quality, name)) for name in expected}
    assert found == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("kind", ["box", "pixel", "random"])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("size", "cells"), [((24, 24), (4, 6)), ((23, 31), (3, 5)), ((40, 30), (7, 7))])
def test_weights_on_cells_are_measured_as_pixel_by_pixel(kind, name, size, cells):
    weights, region = WEIGHTS[name](*cells), regions_of(size, kind)
    weights = weights / weights.sum()
    values = reference.spread(weights[0].double().tolist(), *size)
    assert torch.allclose(attention_map(weights, None, size)[0].double(), torch.tensor(values).double(), atol=1e-7)
    check_against_pixels(quality_of(weights, None, region), torch.tensor([values]), region, cells)


@pytest.mark.parametrize("kind", ["box", "pixel", "random"])
@pytest.mark.parametrize("size", [(24, 24), (23, 31), (90, 70)])
def test_densities_are_measured_as_pixel_by_pixel(kind, size):
    covariance = torch.tensor([[0.02, 0.008], [0.008, 0.03]])
    pair = Gaussian(torch.tensor([[[0.2, 0.7], [0.8, 0.3]]]), 0.4 * covariance.expand(1, 2, 2, 2))
    region = regions_of(size, kind)
    for density in (
        Gaussian(torch.tensor([[0.3, 0.6]]), covariance[None]),
        Paraboloid(torch.tensor([[0.9, 0.5]]), covariance[None]),
        Mixture(torch.tensor([[0.7, 0.3]]), pair),
    ):
        points = torch.cartesian_prod(*((torch.arange(n) + 0.5) / n for n in size)).flip(-1)
        values = density.pdf(points).reshape(1, *size) / (size[0] * size[1])
        quality = quality_of(torch.zeros(1, 5, 5), density, region)
        check_against_pixels(quality, values, region, (5, 5))


def test_a_batch_is_measured_in_parts(monkeypatch):
    torch.manual_seed(0)
    density = Gaussian(torch.rand(7, 2), 0.02 * torch.eye(2).expand(7, 2, 2))
    regions = torch.rand(7, 20, 20) < 0.3
    whole = quality_of(torch.zeros(7, 4, 4), density, regions)
    monkeypatch.setattr("regard.vqa.attention_quality._PIXELS", 800)  # two pictures at a time
    for name, values in vars(quality_of(torch.zeros(7, 4, 4), density, regions)).items():
        assert torch.allclose(values, getattr(whole, name), atol=1e-6), name


def test_a_plateau_does_not_point_at_its_middle():
    """An even spread points everywhere, two equal peaks at both of them and not between them."""
    middle = box(40, slice(18, 22), slice(18, 22))
    even = torch.full((1, 4, 4), 1 / 16)
    corner = box(40, slice(0, 10), slice(0, 10))
    assert float(quality_of(even, None, middle).pointing) == 0  # no cell has its middle there
    assert float(quality_of(even, None, corner).pointing) == 1 / 16
    assert float(attention_quality(attention_map(even, None, (40, 40)), corner, (4, 4)).pointing) == 1 / 16
    peaks = torch.zeros(1, 5, 5)
    peaks[0, 0, 0] = peaks[0, 4, 4] = 0.5
    assert float(quality_of(peaks, None, middle).pointing) == 0
    assert float(quality_of(peaks, None, corner).pointing) == 0.5


def test_a_reference_map_is_compared_by_its_values():
    torch.manual_seed(0)
    maps, soft = torch.rand(1, 12, 12), torch.rand(1, 12, 12)
    quality = attention_quality(maps / maps.sum(), soft, (4, 4))
    p, q = maps.flatten().double().numpy(), soft.flatten().double().numpy()
    assert float(quality.divergence) == pytest.approx(jensenshannon(p, q, base=2) ** 2, abs=1e-6)
    assert float(quality.area) == 1
