"""What is in a scene: objects, their attributes, and how they are drawn at random.

Every random number comes from a generator with a frozen algorithm (numpy's RandomState) seeded by the scene's name, so
that a scene is the same on every machine, whichever others are drawn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 44, 40),
    "green": (40, 160, 60),
    "blue": (44, 84, 214),
    "yellow": (236, 208, 48),
    "purple": (150, 50, 170),
    "cyan": (60, 200, 214),
}
"""The colours of objects: name to red, green and blue."""
SHAPES = ("circle", "square", "triangle", "cross", "ring")
"""The shapes of objects."""
SIZES = {"small": (0.1, 0.12), "large": (0.155, 0.185)}  # radius, as a share of the picture's side
TEXTURES = ("plain", "striped", "chequered")

# One pair of each colour.
HELD_OUT = frozenset(
    {("red", "cross"), ("green", "ring"), ("blue", "triangle"), ("yellow", "circle"), ("cyan", "square")}
    | {("purple", "ring")}
)
"""Pairs of colour and shape that training never shows; every colour and every shape is seen in other pairs."""


@dataclass(frozen=True)
class Thing:
    """One object: attributes, centre and radius as shares of the picture's side (x to the right, y down).

    >>> Thing("ring", "red", "small", "plain", x=0.5, y=0.5, radius=0.1).is_a(shape="ring")
    True
    """

    shape: str
    colour: str
    size: str
    texture: str
    x: float
    y: float
    radius: float

    def is_a(self, **attributes: str) -> bool:
        """Whether it has these attributes.

        >>> Thing("ring", "red", "small", "plain", 0.5, 0.5, 0.1).is_a(colour="red", shape="ring")
        True
        """
        return all(getattr(self, name) == value for name, value in attributes.items())


@dataclass(frozen=True)
class Scene:
    """The objects of a picture, from the back to the front, and the name that seeds its random numbers.

    >>> make_scene("0/train/0").name
    '0/train/0'
    """

    name: str
    things: tuple[Thing, ...]


def named_generator(name: str) -> numpy.random.RandomState:
    """Random numbers that depend on a name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return numpy.random.RandomState(numpy.frombuffer(digest, dtype="<u4").tolist())


def make_scene(name: str, *, held_out: bool = False) -> Scene:
    """One to five objects; neighbours may overlap a little. With `held_out` the first is of a held-out pair.

    Attributes repeat on purpose: an object takes the colour or the shape of an earlier one four times out of ten, so
    that there is something to count and to confuse.

    >>> scene = make_scene("0/train/0")
    >>> scene == make_scene("0/train/0"), 1 <= len(scene.things) <= 5
    (True, True)
    """
    draw = named_generator(name)
    things: list[Thing] = []
    count = draw.randint(1, 6)
    held_out_pair = sorted(HELD_OUT)[draw.randint(len(HELD_OUT))] if held_out else None
    while len(things) < count:
        colour, shape = held_out_pair or _draw_pair(draw, things)
        size = tuple(SIZES)[draw.randint(2)]
        low, high = SIZES[size]
        radius = low + (high - low) * draw.random_sample()
        place = _place(draw, things, radius)
        if place is None:
            break
        things.append(Thing(shape, colour, size, TEXTURES[draw.randint(3)], *place, radius))
        held_out_pair = None
    return Scene(name, tuple(things))


def _draw_pair(draw: numpy.random.RandomState, things: list[Thing]) -> tuple[str, str]:
    while True:
        colour, shape = tuple(COLOURS)[draw.randint(len(COLOURS))], SHAPES[draw.randint(len(SHAPES))]
        if things and draw.random_sample() < 0.4:
            earlier = things[draw.randint(len(things))]
            if draw.random_sample() < 0.5:
                colour = earlier.colour
            else:
                shape = earlier.shape
        if (colour, shape) not in HELD_OUT:
            return colour, shape


def _place(draw: numpy.random.RandomState, things: list[Thing], radius: float) -> tuple[float, float] | None:
    """A centre inside the picture that hides no other object; None where the picture is full."""
    for _ in range(60):
        x, y = (radius + (1 - 2 * radius) * draw.random_sample() for _ in range(2))
        if all((x - t.x) ** 2 + (y - t.y) ** 2 > (0.85 * (radius + t.radius)) ** 2 for t in things):
            return x, y
    return None
