"""Views of pictures, for a whole batch at once, from a seed for each sample.

A crop, its resizing, a flip and a blur are linear and separable: one matrix for the rows of a picture and one for its
columns. Brightness, contrast, saturation, hue and grey are affine in the colours of a pixel: one 3 x 3 matrix and an
offset. So a view is three batched products. Letters: B samples, S side of the picture, s side of the view.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.swav._settings import Crops
from regard.training import mix, uniform

_GREY = torch.tensor([0.299, 0.587, 0.114])
_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_DRAWS = 14
_WINDOW = 1 << 20  # the number of the draws that all views share: that of no view


def views(pictures: Tensor, aspect: Tensor, index: Tensor, settings: Crops, seed: int) -> list[Tensor]:
    """All views of a batch, one tensor for each size: [(2 B, 3, s, s), (local B, 3, t, t)], floats from 0 to 1.

    `pictures` is (B, 3, S, S), uint8; `aspect` (B,) is width over height before they were made square; `index` (B,) and
    `seed` decide all that is random: the views of a sample do not depend on the rest of its batch. Order: view 0 of all
    samples, then view 1, ...

    >>> crops = Crops(size=8, local=3, local_size=4)
    >>> pictures = torch.randint(0, 256, (5, 3, 12, 12), dtype=torch.uint8)
    >>> [tuple(v.shape) for v in views(pictures, torch.ones(5), torch.arange(5), crops, seed=0)]
    [(10, 3, 8, 8), (15, 3, 4, 4)]
    """
    # Half precision would show in the pictures.
    with torch.autocast(pictures.device.type, enabled=False):
        x = pictures.permute(0, 2, 1, 3).float().div_(255)  # rows first: (B, S, 3, S)
        window = _draw_windows(x, index, settings, seed)
        made = [_views(x, aspect, index, window, settings, seed, range(2), settings.size, settings.scale)]
        if settings.local:
            sizes = (settings.local_size, settings.local_scale)
            made.append(_views(x, aspect, index, window, settings, seed, range(2, settings.views), *sizes))
    return made


def _draw_windows(x: Tensor, index: Tensor, settings: Crops, seed: int) -> Tensor:
    """Side, top and left of the window of each picture x (B, S, 3, S), as shares of its side: (B, 3)."""
    u = uniform(mix(seed, _WINDOW), index, 1 + 2 * settings.tries).to(x.device)
    low, high = settings.window
    inside = (low + (high - low) * u[:, :1]).sqrt()
    corners = (1 - inside)[..., None] * u[:, 1:].unflatten(1, (-1, 2))  # (B, tries, 2): top, left
    varies = corners.new_zeros(corners.shape[:2])
    if settings.tries > 1:
        side = x.shape[1]
        sums = torch.stack([x.sum(2), x.square().sum(2)]).cumsum(2).cumsum(3)
        sums = torch.nn.functional.pad(sums, (1, 0, 1, 0))  # [..., r, c]: of all pixels above r and left of c
        start = (corners * side).round().long()
        end = (start + (inside[..., None] * side).round().long().clamp_(min=1)).clamp_(max=side)
        rows = torch.arange(len(x), device=x.device)[:, None]

        def to(corner: Tensor, other: Tensor) -> Tensor:
            return sums[:, rows, corner[..., 0], other[..., 1]]

        total, squares = to(end, end) - to(start, end) - to(end, start) + to(start, start)
        count = 3 * (end - start).prod(-1)
        varies = squares / count - (total / count).square()
    best = varies.argmax(1)
    return torch.cat([inside, corners[torch.arange(len(x), device=x.device), best]], 1)


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
    batch, side = x.shape[:2]
    out = x.new_empty(len(numbers), batch, 3, size * size)
    for place, number in enumerate(numbers):
        u = uniform(mix(seed, number), index, _DRAWS).to(x.device)
        rows, columns = _resampling(u, window, aspect, settings, scale, side, size)
        y = torch.bmm(rows, x.reshape(batch, side, 3 * side)).view(batch, size * 3, side)
        y = torch.bmm(y, columns.mT).view(batch, size, 3, size).transpose(1, 2).reshape(batch, 3, size * size)
        matrix, offset = _colours(u, y, settings)
        torch.baddbmm(offset, matrix, y, out=out[place])
    return out.clamp_(0, 1).view(-1, 3, size, size)


def _resampling(
    u: Tensor, window: Tensor, aspect: Tensor, settings: Crops, scale: tuple[float, float], side: int, size: int
) -> tuple[Tensor, Tensor]:
    """The matrices (B, s, S) that cut, resize, flip and blur rows and columns."""
    area = scale[0] + (scale[1] - scale[0]) * u[:, 0]
    low, high = (math.log(r) for r in settings.ratio)
    ratio = torch.exp(low + (high - low) * u[:, 1]) / aspect  # in units of the square that the picture became
    inside, top, left = window.unbind(1)
    width, height = ((area * r).sqrt().clamp_(max=1) * inside for r in (ratio, 1 / ratio))
    rows = _resampling_weights((top + (inside - height) * u[:, 2]) * side, height * side, side, size)
    columns = _resampling_weights((left + (inside - width) * u[:, 3]) * side, width * side, side, size)
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
    """Bilinear resampling of [start, start + length) to `size` points, averaging where it shrinks: (B, size, side)."""
    step = (length / size).view(-1, 1, 1)
    at = start.view(-1, 1, 1) + step * (torch.arange(size, device=start.device).view(-1, 1) + 0.5)
    pixel = torch.arange(side, device=start.device) + 0.5
    weights = (1 - (pixel - at).abs() / step.clamp(min=1)).clamp_(min=0)
    return weights / weights.sum(-1, keepdim=True)


def _colours(u: Tensor, y: Tensor, settings: Crops) -> tuple[Tensor, Tensor]:
    """The matrix (B, 3, 3) and the offset (B, 3, 1) of the change of colours of views y (B, 3, P)."""
    on = u[:, 7] < settings.jitter_p
    brightness, contrast, saturation = (
        torch.where(on, 1 + jitter * (2 * u[:, 8 + i] - 1), 1.0).clamp_(min=0)
        for i, jitter in enumerate(settings.jitter[:3])
    )
    turn = 2 * math.pi * settings.jitter[3] * (2 * u[:, 11] - 1) * on
    saturation = torch.where(u[:, 12] < settings.grey, 0.0, saturation)  # no colour is left: grey
    grey, yiq = _GREY.to(u.device), _YIQ.to(u.device)
    # In YIQ the hue is an angle and the saturation a length.
    cos, sin = saturation * turn.cos(), saturation * turn.sin()
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    inside = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], -1).view(-1, 3, 3)
    matrix = torch.linalg.inv(yiq) @ inside @ yiq * (brightness * contrast).view(-1, 1, 1)
    mean = brightness * (y.mean(-1) @ grey)
    return matrix, ((1 - contrast) * mean).view(-1, 1, 1).expand(-1, 3, 1)
