"""Questions about a scene: seven families, each in several wordings, with the objects that the answer rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regard.scenes.world import COLOURS, HELD_OUT, SHAPES, SIZES, Scene, Thing

FAMILIES = ("exists", "colour", "shape", "how many", "where", "relation", "nearest")
"""The families of questions, in the order of the questions about a scene."""
ANSWER_TYPES = {"exists": "yes/no", "how many": "number"}  # the others are "other", as VQA-v2 has it
MOST = 3  # the largest count in an answer


@dataclass(frozen=True)
class Candidate:
    """A question with one clear answer in a scene."""

    family: str
    form: str  # a family may have several
    words: dict[str, str]  # for the gaps of its template
    answer: str
    regions: tuple[int, ...]  # indices of the objects that the answer depends on
    pairs: tuple[tuple[str, str], ...]  # colour and shape of the objects that it names or is about


TEMPLATES: dict[str, tuple[str, ...]] = {
    "exists": (
        "Is there a {one}?",
        "Can you see a {one}?",
        "Does the picture show a {one}?",
        "Is a {one} in the picture?",
    ),
    "colour": (
        "What colour is the {one}?",
        "What is the colour of the {one}?",
        "The {one} has which colour?",
        "Which colour does the {one} have?",
    ),
    "shape": (
        "What shape is the {one}?",
        "What is the shape of the {one}?",
        "The {one} has which shape?",
        "Which shape does the {one} have?",
    ),
    "how many": (
        "How many {many} are there?",
        "What is the number of {many}?",
        "How many {many} can you see?",
        "Count the {many}.",
    ),
    "where": (
        "Where is the {one}?",
        "In which corner is the {one}?",
        "Which part of the picture is the {one} in?",
        "The {one} is in which corner?",
    ),
    "relation": (
        "On which side of the {other} is the {one}?",
        "Seen from the {other}, where is the {one}?",
        "Where is the {one} relative to the {other}?",
        "In which direction from the {other} is the {one}?",
    ),
    "nearest, colour": (
        "What colour is the object nearest to the {one}?",
        "Which colour does the thing closest to the {one} have?",
        "What is the colour of the nearest neighbour of the {one}?",
    ),
    "nearest, shape": (
        "What shape is the object nearest to the {one}?",
        "Which shape does the thing closest to the {one} have?",
        "What is the shape of the nearest neighbour of the {one}?",
    ),
}


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Every question that has one clear answer in this scene."""
    yield from _exists(scene)
    yield from _attribute(scene)
    yield from _how_many(scene)
    named = list(_named(scene))
    for i, name in named:
        thing = scene.things[i]
        corner = _corner(thing)
        if corner:
            yield Candidate("where", "where", {"one": name}, corner, (i,), (_pair_of(thing),))
        yield from _nearest(scene, i, name)
    for i, name in named:
        for j, other in named:
            side = _side(scene.things[i], scene.things[j]) if i != j else None
            if side:
                pairs = (_pair_of(scene.things[i]), _pair_of(scene.things[j]))
                yield Candidate("relation", "relation", {"one": name, "other": other}, side, (i, j), pairs)


def _pair_of(thing: Thing) -> tuple[str, str]:
    return thing.colour, thing.shape


def _exists(scene: Scene) -> Iterator[Candidate]:
    for colour in COLOURS:
        for shape in SHAPES:
            matches = tuple(i for i, t in enumerate(scene.things) if t.is_a(colour=colour, shape=shape))
            # A "no" needs the colour or the shape in the scene: the absence of both would give the answer away.
            similar = any(t.colour == colour or t.shape == shape for t in scene.things)
            if matches or similar:
                answer = "yes" if matches else "no"
                yield Candidate("exists", "exists", {"one": f"{colour} {shape}"}, answer, matches, ((colour, shape),))


def _attribute(scene: Scene) -> Iterator[Candidate]:
    """The colour of the one circle, of the one small circle; the shape of the one red object."""
    for unknown, known, noun in (("colour", "shape", ""), ("shape", "colour", " object")):
        for size in ("", *SIZES):
            for value in SHAPES if known == "shape" else COLOURS:
                attributes = {known: value} | ({"size": size} if size else {})
                matches = [i for i, t in enumerate(scene.things) if t.is_a(**attributes)]
                if len(matches) == 1:
                    thing = scene.things[matches[0]]
                    name = f"{size} {value}{noun}".strip()
                    yield Candidate(
                        unknown, unknown, {"one": name}, getattr(thing, unknown), tuple(matches), (_pair_of(thing),)
                    )


def _how_many(scene: Scene) -> Iterator[Candidate]:
    kinds = [("of a colour", {"colour": c}, f"{c} objects") for c in COLOURS]
    kinds += [("of a shape", {"shape": s}, _plural(s)) for s in SHAPES]
    kinds += [("of a size", {"size": s}, f"{s} objects") for s in SIZES]
    for form, attributes, many in kinds:
        matches = tuple(i for i, t in enumerate(scene.things) if t.is_a(**attributes))
        if len(matches) <= MOST:
            pairs = tuple(_pair_of(scene.things[i]) for i in matches)
            yield Candidate("how many", f"how many {form}", {"many": many}, str(len(matches)), matches, pairs)


def _named(scene: Scene) -> Iterator[tuple[int, str]]:
    """Index and name of the objects that colour and shape identify uniquely."""
    for i, thing in enumerate(scene.things):
        if sum(t.is_a(colour=thing.colour, shape=thing.shape) for t in scene.things) == 1:
            yield i, f"{thing.colour} {thing.shape}"


def _corner(thing: Thing) -> str | None:
    if min(abs(thing.x - 0.5), abs(thing.y - 0.5)) < 0.05:
        return None
    return f"{'top' if thing.y < 0.5 else 'bottom'} {'left' if thing.x < 0.5 else 'right'}"


def _side(one: Thing, other: Thing) -> str | None:
    """Where `one` is, seen from `other`; None where it is not clearly to one side."""
    dx, dy = one.x - other.x, one.y - other.y
    if max(abs(dx), abs(dy)) < 0.15 or 2 * min(abs(dx), abs(dy)) > max(abs(dx), abs(dy)):
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "below" if dy > 0 else "above"


def _nearest(scene: Scene, i: int, name: str) -> Iterator[Candidate]:
    thing = scene.things[i]
    others = sorted(((t.x - thing.x) ** 2 + (t.y - thing.y) ** 2, j) for j, t in enumerate(scene.things) if j != i)
    if not others or (len(others) > 1 and others[0][0] * 1.4 > others[1][0]):  # squared: nearer by a factor of 1.18
        return
    j = others[0][1]
    nearest = scene.things[j]
    for attribute in ("colour", "shape"):
        yield Candidate(
            "nearest",
            f"nearest, {attribute}",
            {"one": name},
            getattr(nearest, attribute),
            (i, j),
            (_pair_of(thing), _pair_of(nearest)),
        )


def _plural(shape: str) -> str:
    return shape + ("es" if shape == "cross" else "s")


def asks_held_out(candidate: Candidate) -> bool:
    """Whether the question names or is about a pair of colour and shape that training never shows."""
    return any(pair in HELD_OUT for pair in candidate.pairs)
