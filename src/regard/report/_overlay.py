"""A picture with the attention on it, in colour: the same scale and the same line in every picture of a report.

Legend: H x W pixels.
"""

from __future__ import annotations

import io
from typing import Any

import numpy
import torch
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.report._entries import Predicted
from regard.vqa.attention_quality import attention_map

Rgb = NDArray[numpy.uint8]
Values = NDArray[numpy.float64]

# Perceptually uniform, safe for the colour-blind, and from purple to yellow, which stands out from grass and sky. The
# darkest part is left out: it would only darken the picture.
WARM = ListedColormap(colormaps["plasma"](numpy.linspace(0.3, 1, 256)), "regard-warm")
TOP = 16.0  # times an even spread: there and above the colour is the brightest
_DIM, _COLOURED = 0.8, 0.6  # the picture's brightness and colour under the attention, as shares of its own
_OPAQUE = 0.85  # of the brightest colour
_QUALITIES = (85, 75, 60, 45, 30)


def fitted(picture: Tensor, side: int) -> Rgb:
    """A picture (3, H, W) of bytes as (H, W, 3), with `side` pixels on its longer side.

    A small one is enlarged, so that the line of the attention is as thin on it as on others.
    """
    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())
    factor = side / max(image.size)
    # At least a few pixels: of a picture 1 x 1000 there would be none left to draw on.
    size = max(8, round(factor * image.width)), max(8, round(factor * image.height))
    kind = Image.Resampling.NEAREST if factor > 4 else Image.Resampling.LANCZOS
    return numpy.asarray(image.resize(size, kind))


def attention_values(predicted: Predicted, height: int, width: int) -> Values:
    """The attention per area at each pixel, (H, W): 1 is an even spread."""
    weights = predicted.weights.detach().float().cpu()[None]
    mass = attention_map(weights, predicted.density, (height, width))[0]
    return mass.double().cpu().numpy() * (height * width)


def overlay(pixels: Rgb, values: Values, line: bool = True) -> Rgb:
    """The attention laid over a picture that is dimmed a little, (H, W, 3).

    `pixels`: the picture, (H, W, 3).
    `values`: the attention per area, (H, W); where it is zero the picture is clear, where it is negative, hatched.
    `line`: draw a white line around the places with the most attention that together hold half of it; default True.
    """
    strength = colour_strength(values)[..., None]
    colour = numpy.asarray(WARM(strength[..., 0]))[..., :3] * 255
    opacity = _OPAQUE * strength
    grey = (pixels @ numpy.array([0.299, 0.587, 0.114]))[..., None]
    drawn = _DIM * (grey + _COLOURED * (pixels - grey)) * (1 - opacity) + colour * opacity
    if (values < -0.05 * values.max()).any():
        rows, columns = numpy.indices(values.shape)
        hatch = (values < -0.05 * values.max()) & ((rows + columns) % 8 < 2)
        drawn = numpy.where(hatch[..., None], 255.0, drawn)
    if line:
        edge = _grown(_edge(values >= _half_level(values)))
        around = _grown(_grown(edge)) & ~edge
        drawn = numpy.where(around[..., None], 0.3 * drawn, drawn)
        drawn = numpy.where(edge[..., None], 255.0, drawn)
    result: Rgb = numpy.rint(drawn).clip(0, 255).astype(numpy.uint8)
    return result


def colour_strength(values: Any) -> Values:
    """From 0 to 1, the place on the scale of colours: a square root, so that broad attention shows beside a peak."""
    strength: Values = numpy.sqrt(numpy.clip(numpy.asarray(values, dtype=numpy.float64) / TOP, 0, 1))
    return strength


def jpeg(pixels: Rgb, at_most: int) -> bytes:
    """A picture as JPEG of at most so many bytes: the best quality that fits, and if none does, half the size."""
    image = Image.fromarray(pixels)
    while True:
        for quality in _QUALITIES:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=quality, optimize=True)
            if file.tell() <= at_most or max(image.size) <= 16:
                return file.getvalue()
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))


def _half_level(values: Values) -> float:
    """The level such that the places at or above it are the fewest that hold half of the attention."""
    ordered = numpy.sort(numpy.clip(values, 0, None), axis=None)[::-1]
    mass = ordered.cumsum()
    # A plateau, such as a cell, belongs to the places as a whole, whatever rounding does to its pixels.
    return float(ordered[int(numpy.searchsorted(mass, mass[-1] / 2))]) * (1 - 1e-5)


def _edge(inside: NDArray[numpy.bool_]) -> NDArray[numpy.bool_]:
    """The pixels of a region that touch its outside or the border of the picture."""
    padded = numpy.pad(inside, 1)
    within = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside & ~within


def _grown(mask: NDArray[numpy.bool_]) -> NDArray[numpy.bool_]:
    """A mask with the pixels next to it."""
    grown = torch.nn.functional.max_pool2d(torch.from_numpy(mask)[None, None].float(), 3, 1, 1)
    return grown[0, 0].numpy() > 0
