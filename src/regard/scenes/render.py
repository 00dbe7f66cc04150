"""Drawing a scene: anti-aliased by distance to the outline, with sums, products and roots alone.

No sine and no exponential: their last digits differ between machines, and a picture must not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from regard.scenes.world import COLOURS, Scene, Thing, named_generator

SIZE = 80
Pixels = NDArray[numpy.float64]


class Rendered(NamedTuple):
    """A picture (3, size, size) uint8, and for each pixel the object in front, counted from one, or 0: (size, size).

    >>> from regard.scenes import make_scene
    >>> drawn = render(make_scene("0/train/0"), size=40)
    >>> drawn.picture.shape, drawn.objects.shape
    ((3, 40, 40), (40, 40))
    """

    picture: NDArray[numpy.uint8]
    objects: NDArray[numpy.uint8]


def render(scene: Scene, size: int = SIZE) -> Rendered:
    """Draw a scene: a shaded background with noise, clutter, then the objects from the back to the front.

    The same scene gives the same bytes.

    >>> from regard.scenes import make_scene
    >>> picture, objects = render(make_scene("0/train/0"))
    >>> picture.shape, int(objects.max())
    ((3, 80, 80), 5)
    """
    draw = named_generator(scene.name + "/pixels")
    axis = (numpy.arange(size, dtype=numpy.float64) + 0.5) / size
    slope = 60 * (draw.random_sample((3, 2)) - 0.5) * [[1.0], [0.9], [0.9]]
    base = 90 + 80 * draw.random_sample() + 16 * (draw.random_sample(3) - 0.5)
    canvas = base[:, None, None] + slope[:, :1, None] * axis + slope[:, 1:, None] * axis[:, None]
    for _ in range(draw.randint(0, 9)):
        _clutter(canvas, draw, size)
    objects = numpy.zeros((size, size), dtype=numpy.uint8)
    for number, thing in enumerate(scene.things, start=1):
        _paint(canvas, objects, thing, number, draw, size)
    canvas += draw.randint(-5, 6, canvas.shape)
    return Rendered(canvas.clip(0, 255).astype(numpy.uint8), objects)


def _window(x: float, y: float, radius: float, size: int) -> tuple[slice, slice, Pixels, Pixels]:
    """The rows and columns around a centre, and the offsets of their pixels from it, in pixels."""
    cx, cy, reach = x * size, y * size, radius * size + 2
    rows = slice(max(0, int(cy - reach)), min(size, int(cy + reach) + 1))
    columns = slice(max(0, int(cx - reach)), min(size, int(cx + reach) + 1))
    dx = numpy.arange(columns.start, columns.stop) + 0.5 - cx
    dy = numpy.arange(rows.start, rows.stop)[:, None] + 0.5 - cy
    return rows, columns, dx + 0 * dy, dy + 0 * dx


def _clutter(canvas: Pixels, draw: numpy.random.RandomState, size: int) -> None:
    """Draw a small grey dash or dot, a distractor."""
    x, y, length, half = draw.random_sample(4) * [1, 1, 3.5, 0.8]
    grey = 40 + 170 * draw.random_sample()
    rows, columns, dx, dy = _window(x, y, (length + half) / size, size)
    along, across = (dx, dy) if draw.random_sample() < 0.5 else (dy, dx)
    _blend(canvas[:, rows, columns], numpy.minimum(length - abs(along), 0.6 + half - abs(across)), grey)


def _paint(
    canvas: Pixels, objects: NDArray[numpy.uint8], thing: Thing, number: int, draw: numpy.random.RandomState, size: int
) -> None:
    """Draw one object.

    `canvas`: (3, size, size), changed in place.
    `objects`: number of the front object per pixel, (size, size), changed in place.
    `thing`: what to draw.
    `number`: of the object, counted from one.
    `draw`: random numbers.
    `size`: side of the picture in pixels.
    """
    turn = 0.2 * (draw.random_sample() - 0.5)  # the tangent of half the angle, so that no sine is needed
    cosine, sine = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
    colour = numpy.array(COLOURS[thing.colour], dtype=numpy.float64) + 30 * (draw.random_sample(3) - 0.5)
    phase, period = draw.random_sample(2)
    rows, columns, dx, dy = _window(thing.x, thing.y, thing.radius, size)
    u, v = cosine * dx + sine * dy, cosine * dy - sine * dx
    inside = outline(thing.shape, u, v, thing.radius * size)
    shade = 1 - 0.2 * _texture(thing.texture, u, v, phase, 4 + 3 * period)
    _blend(canvas[:, rows, columns], inside, colour[:, None, None] * shade)
    front = objects[rows, columns]
    front[inside >= 0] = number


def outline(shape: str, u: Pixels, v: Pixels, radius: float) -> Pixels:
    """Signed distance in pixels to a shape's outline, positive inside.

    `shape`: one of `SHAPES`.
    `u`, `v`: coordinates of the pixels relative to the centre.
    `radius`: of the object, in pixels.
    """
    distance = numpy.sqrt(u * u + v * v)
    if shape == "circle":
        return 0.9 * radius - distance
    if shape == "ring":
        return numpy.minimum(radius - distance, distance - 0.5 * radius)
    if shape == "square":
        return 0.8 * radius - numpy.maximum(abs(u), abs(v))
    if shape == "cross":
        arm = 0.33 * radius
        along = numpy.minimum(radius - abs(u), arm - abs(v))
        return numpy.maximum(along, numpy.minimum(radius - abs(v), arm - abs(u)))
    side = 3**0.5 / 2  # a triangle that points up
    top = v + 0.1 * radius
    return numpy.minimum(0.55 * radius - top, 0.55 * radius - (side * abs(u) - 0.5 * top))


def _texture(texture: str, u: Pixels, v: Pixels, phase: float, period: float) -> Pixels:
    """Darkness of the pattern at each pixel, from 0 to 1."""
    if texture == "plain":
        return numpy.zeros_like(u)
    wave = abs(2 * ((u / period + phase) % 1) - 1) - 0.5
    if texture == "chequered":
        wave = 2 * wave * (abs(2 * ((v / period + phase) % 1) - 1) - 0.5)
    return (2 * period * wave / 2 + 0.5).clip(0, 1)


def _blend(canvas: Pixels, inside: Pixels, colour: Pixels | float) -> None:
    coverage = (inside + 0.5).clip(0, 1)
    canvas += coverage * (colour - canvas)
