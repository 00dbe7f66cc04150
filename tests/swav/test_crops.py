"""Views of pictures: the sampling against plain loops and PIL, the colours against their definition, the seeds."""

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from reference import swav as reference

from regard.swav import Crops, views
from regard.swav._crops import _colours, _resampling, _resampling_weights

PLAIN = Crops(size=8, scale=(1.0, 1.0), ratio=(1.0, 1.0), local=0, flip=0, jitter_p=0, grey=0)


def pictures(n=4, side=12, seed=0):
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def cut(x, settings, seed=0, index=None, aspect=None):
    index = torch.arange(len(x)) if index is None else index
    return views(x, torch.ones(len(x)) if aspect is None else aspect, index, settings, seed)


@pytest.mark.parametrize(("side", "size"), [(12, 12), (12, 8), (8, 12), (30, 7)])
def test_a_whole_view_is_pils_resize(side, size):
    x = pictures(side=side)
    made = cut(x, replace(PLAIN, size=size))[0][: len(x)] * 255
    for i, picture in enumerate(x):
        image = Image.fromarray(picture.permute(1, 2, 0).numpy()).resize((size, size), Image.Resampling.BILINEAR)
        assert (made[i].permute(1, 2, 0).numpy() - np.asarray(image, dtype=float)).__abs__().max() < 1.01


@pytest.mark.parametrize(("start", "length", "size"), [(0.0, 10.0, 10), (2.3, 4.1, 9), (1.7, 8.2, 3)])
def test_weights_are_the_plain_loop(start, length, size):
    row = torch.rand(10)
    made = _resampling_weights(torch.tensor([start]), torch.tensor([length]), 10, size)[0] @ row
    assert torch.allclose(made, torch.tensor(reference.resample(row.tolist(), start, length, size)), atol=1e-5)


def test_boxes_have_the_area_and_ratio_asked_for():
    settings = replace(PLAIN, ratio=(0.5, 2.0))
    u = torch.rand(500, 14)
    side, aspect = 64, torch.full((500,), 1.5)
    rows, columns = _resampling(u, torch.tensor([1.0, 0.0, 0.0]).expand(500, 3), aspect, settings, (0.1, 0.3), side, 4)
    # The mean place of the first and last output pixel says where the box is.
    at = torch.arange(side) + 0.5
    height, width = (((m[:, -1] - m[:, 0]) @ at) / 0.75 / side for m in (rows, columns))
    assert ((height * width - (0.1 + 0.2 * u[:, 0])).abs() < 0.02).float().mean() > 0.9
    assert ((width * 1.5 / height).log() - (u[:, 1] * 2 - 1) * np.log(2)).abs().median() < 0.1


def test_views_of_a_window_show_its_part_of_the_picture():
    # A picture that says where it is: red grows to the right, green downwards.
    at = torch.linspace(0, 1, 64)
    place = torch.stack([at.expand(64, 64), at.view(-1, 1).expand(64, 64), torch.zeros(64, 64)])
    x = (place * 255).round().to(torch.uint8).expand(200, 3, 64, 64)
    settings = replace(PLAIN, window=(0.09, 0.09), scale=(0.2, 1.0), local=3, local_size=6, local_scale=(0.1, 0.5))
    made = [v.view(-1, 200, 3, v.shape[-1] ** 2)[:, :, :2] for v in cut(x, settings)]
    low = torch.cat([v.amin(-1) for v in made]).amin(0)
    high = torch.cat([v.amax(-1) for v in made]).amax(0)
    assert (high - low).max() < 0.3 + 0.03  # all views together are not wider than the window's side
    assert (high - low).mean() > 0.2
    middle = (high + low) / 2
    assert middle.min() < 0.22  # windows reach the edges
    assert middle.max() > 0.78
    assert middle.std(0).min() > 0.15  # and are all over the picture


def test_of_several_windows_the_one_that_varies_most_is_taken():
    # One bright spot on black: with one try most windows miss it, with many hardly any does.
    x = torch.zeros(300, 3, 64, 64, dtype=torch.uint8)
    x[:, :, 40:46, 20:26] = 255
    settings = replace(PLAIN, window=(0.1, 0.1), scale=(1.0, 1.0), local=0)
    hit = {
        tries: (cut(x, replace(settings, tries=tries))[0].flatten(1).amax(1) > 0.5).float().mean() for tries in (1, 32)
    }
    assert hit[1] < 0.5
    assert hit[32] > 0.95


def test_a_flip_is_a_mirror():
    x = pictures()
    assert torch.allclose(cut(x, replace(PLAIN, flip=1.0))[0], cut(x, PLAIN)[0].flip(-1), atol=1e-6)
    both = cut(pictures(200), replace(PLAIN, flip=0.5))[0]
    turned = (both - cut(pictures(200), PLAIN)[0]).abs().flatten(1).amax(1) > 1e-3
    assert 0.4 < turned.float().mean() < 0.6


def test_a_blur_keeps_the_mean_and_lowers_the_contrast():
    x = pictures(side=16)
    settings = replace(PLAIN, size=16, blur=1.0, blur_sigma=(0.1, 0.1))
    blurred, sharp = cut(x, settings)[0], cut(x, replace(PLAIN, size=16))[0]
    assert (blurred.mean((-1, -2)) - sharp.mean((-1, -2))).abs().max() < 0.03
    assert blurred.std() < 0.4 * sharp.std()


def colours(x, settings, u):
    matrix, offset = _colours(u, x, settings)
    return matrix @ x + offset


def draws(**at):
    places = {"jitter": 7, "brightness": 8, "contrast": 9, "saturation": 10, "hue": 11, "grey": 12}
    u = torch.full((1, 14), 0.5)
    u[0, 7], u[0, 12] = 0.0, 1.0
    for name, value in at.items():
        u[0, places[name]] = value
    return u


def test_colours_by_their_definition():
    x = torch.rand(1, 3, 50) * 0.5 + 0.2
    settings = replace(PLAIN, jitter_p=1.0, jitter=(0.4, 0.4, 0.4, 0.25), grey=0.5)
    grey = torch.tensor([0.299, 0.587, 0.114])
    luma = (x.mT @ grey).unsqueeze(1)
    assert torch.allclose(colours(x, settings, draws()), x, atol=1e-5)
    assert torch.allclose(colours(x, settings, draws(brightness=1.0)), 1.4 * x, atol=1e-5)
    assert torch.allclose(colours(x, settings, draws(contrast=1.0)), 1.4 * x - 0.4 * luma.mean(), atol=1e-5)
    assert torch.allclose(colours(x, settings, draws(saturation=0.0)), 0.6 * x + 0.4 * luma, atol=1e-4)
    assert torch.allclose(colours(x, settings, draws(grey=0.0)), luma.expand(-1, 3, -1), atol=1e-4)
    assert torch.equal(colours(x, settings, draws(jitter=1.1, brightness=0.9)), colours(x, settings, draws(jitter=1.1)))


def test_the_hue_turns_and_lightness_stays():
    red = torch.tensor([0.6, 0.3, 0.3]).view(1, 3, 1)
    settings = replace(PLAIN, jitter_p=1.0, jitter=(0, 0, 0, 1 / 3))
    turned = colours(red, settings, draws(hue=1.0)).flatten().tolist()
    hue = colorsys.rgb_to_hsv(*turned)[0]
    assert min(abs(hue - 1 / 3), abs(hue - 2 / 3)) < 0.08
    grey = torch.tensor([0.299, 0.587, 0.114])
    assert float(grey @ torch.tensor(turned)) == pytest.approx(float(grey @ red.flatten()), abs=1e-4)


def test_a_view_depends_on_its_sample_and_seed_alone():
    settings = Crops(size=8, local=2, local_size=4, blur=0.5)
    x, index = pictures(6), torch.tensor([7, 1, 30, 4, 9, 2])
    one = [v.view(-1, 6, *v.shape[1:]) for v in cut(x, settings, 3, index)]
    order = torch.tensor([4, 0, 2])
    two = [v.view(-1, 3, *v.shape[1:]) for v in cut(x[order], settings, 3, index[order])]
    for a, b in zip(one, two, strict=True):
        assert torch.allclose(a[:, order], b, atol=1e-6)
    other = cut(x, settings, 4, index)
    assert not torch.allclose(other[0], cut(x, settings, 3, index)[0], atol=1e-2)
    assert not torch.allclose(one[0][0], one[0][1], atol=1e-2)  # two views of a sample are two
    assert min(float(v.min()) for v in other) >= 0
    assert max(float(v.max()) for v in other) <= 1
