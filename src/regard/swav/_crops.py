"""Views of pictures, for a whole batch at once; random numbers are functions of the seed and the sample.

A crop, its resizing, a flip and a blur are linear and separable: one matrix for the rows of a picture and one for its
columns. Brightness, contrast, saturation, hue and grey are affine in the colours of a pixel: one 3 x 3 matrix and an
offset. So a view is three batched products. Legend: B samples, S side of the picture, s side of the view.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard._fixed_numbers import fixed_numbers
from regard.swav._settings import Crops
from regard.training import mix, uniform
from regard.training._device import sent

_GREY = (0.299, 0.587, 0.114)
_YIQ = (_GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_DRAWS = 14  # random numbers per view
_WINDOW = 1 << 20  # key of the random numbers that all views share; no view has this number


def views(pictures: Tensor, aspect: Tensor, index: Tensor, settings: Crops, seed: int) -> list[Tensor]:
    """All views of a batch, one tensor per size: [(2 B, 3, s, s), (local B, 3, t, t)], floats from 0 to 1.

    The order is view 0 of all samples, then view 1, ...

    `pictures`: (B, 3, S, S), uint8.
    `aspect`: (B,), width over height before they were made square.
    `index`: (B,), the number of each sample; with `seed` it determines all random numbers, so that the views of a
        sample do not depend on the rest of its batch.
    `settings`: of the crops.
    `seed`: another one for each epoch.

    >>> crops = Crops(size=8, local=3, local_size=4)
    >>> pictures = torch.randint(0, 256, (5, 3, 12, 12), dtype=torch.uint8)
    >>> [tuple(v.shape) for v in views(pictures, torch.ones(5), torch.arange(5), crops, seed=0)]
    [(10, 3, 8, 8), (15, 3, 4, 4)]
    """
    # Half precision would be visible in the pictures.
    with torch.autocast(pictures.device.type, enabled=False):
        x = pictures.permute(0, 2, 1, 3).float().div_(255)  # rows first: (B, S, 3, S)
        aspect = aspect.to(x)
        window = _draw_windows(x, index, settings, seed)
        batches = [_views(x, aspect, index, window, settings, seed, range(2), settings.size, settings.scale)]
        if settings.local:
            sizes = (settings.local_size, settings.local_scale)
            batches.append(_views(x, aspect, index, window, settings, seed, range(2, settings.views), *sizes))
    return batches


def one_view(pictures: Tensor, aspect: Tensor, index: Tensor, settings: Crops, seed: int) -> Tensor:
    """The first large view of each sample, (B, 3, s, s), floats from 0 to 1; arguments as in `views`."""
    with torch.autocast(pictures.device.type, enabled=False):
        x = pictures.permute(0, 2, 1, 3).float().div_(255)
        window = _draw_windows(x, index, settings, seed)
        return _views(x, aspect, index, window, settings, seed, range(1), settings.size, settings.scale)


def _draw_windows(x: Tensor, index: Tensor, settings: Crops, seed: int) -> Tensor:
    """Side, top and left of the window of each picture x (B, S, 3, S), as shares of its side: (B, 3).

    Of `settings.tries` random windows, the one whose pixels vary most.
    """
    u = sent(uniform(mix(seed, _WINDOW), index, 1 + 2 * settings.tries), x.device)
    low, high = settings.window
    length = (low + (high - low) * u[:, :1]).sqrt()
    corners = (1 - length)[..., None] * u[:, 1:].unflatten(1, (-1, 2))  # (B, tries, 2): top, left
    variance = corners.new_zeros(corners.shape[:2])
    if settings.tries > 1:
        side = x.shape[1]
        sums = torch.stack([x.sum(2), x.square().sum(2)]).cumsum(2).cumsum(3)
        sums = torch.nn.functional.pad(sums, (1, 0, 1, 0))  # [..., r, c]: of all pixels above r and left of c
        start = (corners * side).round().long()
        end = (start + (length[..., None] * side).round().long().clamp_(min=1)).clamp_(max=side)
        rows = torch.arange(len(x), device=x.device)[:, None]

        def at(row: Tensor, column: Tensor) -> Tensor:
            return sums[:, rows, row[..., 0], column[..., 1]]

        total, squares = at(end, end) - at(start, end) - at(end, start) + at(start, start)
        count = 3 * (end - start).prod(-1)
        variance = squares / count - (total / count).square()
    best = variance.argmax(1)
    return torch.cat([length, corners[torch.arange(len(x), device=x.device), best]], 1)


def _views(
    x: Tensor,
    aspect: Tensor,
    index: Tensor,
    window: Tensor,
    settings: Crops,
    seed: int,
    numbers: range,
    size: int,
    scale: tuple[float, float],
) -> Tensor:
    """Views (len(numbers) B, 3, size, size) of one size.

    `x`: pictures (B, S, 3, S), floats from 0 to 1.
    `aspect`, `index`, `settings`, `seed`: as in `views`.
    `window`: (B, 3), as `_draw_windows` returns it.
    `numbers`: of the views.
    `size`: the side of a view in pixels.
    `scale`: least and largest share of the window in a view.
    """
    batch, side = x.shape[:2]
    out = x.new_empty(len(numbers), batch, 3, size * size)
    for i, number in enumerate(numbers):
        u = sent(uniform(mix(seed, number), index, _DRAWS), x.device)
        rows, columns = _resampling(u, window, aspect, settings, scale, side, size)
        y = torch.bmm(rows, x.reshape(batch, side, 3 * side)).view(batch, size * 3, side)
        y = torch.bmm(y, columns.mT).view(batch, size, 3, size).transpose(1, 2).reshape(batch, 3, size * size)
        matrix, offset = _colours(u, y, settings)
        torch.baddbmm(offset, matrix, y, out=out[i])
    return out.clamp_(0, 1).view(-1, 3, size, size)


def _resampling(
    u: Tensor, window: Tensor, aspect: Tensor, settings: Crops, scale: tuple[float, float], side: int, size: int
) -> tuple[Tensor, Tensor]:
    """The matrices (B, s, S) that cut, resize, flip and blur rows and columns.

    `u`: random numbers (B, _DRAWS).
    `window`, `aspect`, `settings`, `scale`, `size`: as in `_views`.
    `side`: S.
    """
    area = scale[0] + (scale[1] - scale[0]) * u[:, 0]
    low, high = (math.log(r) for r in settings.ratio)
    ratio = torch.exp(low + (high - low) * u[:, 1]) / aspect  # in units of the square that the picture became
    length, top, left = window.unbind(1)
    width, height = ((area * r).sqrt().clamp_(max=1) * length for r in (ratio, 1 / ratio))
    rows = _resampling_weights((top + (length - height) * u[:, 2]) * side, height * side, side, size)
    columns = _resampling_weights((left + (length - width) * u[:, 3]) * side, width * side, side, size)
    if settings.flip:
        columns = torch.where((u[:, 4] < settings.flip).view(-1, 1, 1), columns.flip(1), columns)
    if settings.blur:
        low, high = settings.blur_sigma
        sigma = size * (low + (high - low) * u[:, 6]) * (u[:, 5] < settings.blur)
        at = torch.arange(size, device=u.device, dtype=u.dtype)
        blur = torch.exp(-((at[:, None] - at).square() / (2 * sigma.square().clamp(min=1e-4)).view(-1, 1, 1)))
        blur /= blur.sum(-1, keepdim=True)
        rows, columns = blur @ rows, blur @ columns
    return rows, columns


def _resampling_weights(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """The matrices (B, size, side) that resample [start, start + length) to `size` points, bilinear with averaging."""
    step = (length / size).view(-1, 1, 1)
    at = start.view(-1, 1, 1) + step * (torch.arange(size, device=start.device, dtype=start.dtype).view(-1, 1) + 0.5)
    pixel = torch.arange(side, device=start.device, dtype=start.dtype) + 0.5
    weights = (1 - (pixel - at).abs() / step.clamp(min=1)).clamp_(min=0)
    return weights / weights.sum(-1, keepdim=True)


def _colours(u: Tensor, y: Tensor, settings: Crops) -> tuple[Tensor, Tensor]:
    """The matrix (B, 3, 3) and the offset (B, 3, 1) of the change of colours of views y (B, 3, P)."""
    on = u[:, 7] < settings.jitter_p
    brightness, contrast, saturation = (
        torch.where(on, 1 + jitter * (2 * u[:, 8 + i] - 1), 1.0).clamp_(min=0)
        for i, jitter in enumerate(settings.jitter[:3])
    )
    angle = 2 * math.pi * settings.jitter[3] * (2 * u[:, 11] - 1) * on
    saturation = torch.where(u[:, 12] < settings.grey, 0.0, saturation)  # without saturation a view is grey
    grey, yiq = fixed_numbers(_GREY, u), fixed_numbers(_YIQ, u)
    # In YIQ the hue is an angle and the saturation a length.
    cos, sin = saturation * angle.cos(), saturation * angle.sin()
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rotation = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], -1).view(-1, 3, 3)
    matrix = torch.linalg.inv_ex(yiq).inverse @ rotation @ yiq * (brightness * contrast).view(-1, 1, 1)
    mean = brightness * (y.mean(-1) @ grey)
    return matrix, ((1 - contrast) * mean).view(-1, 1, 1).expand(-1, 3, 1)
