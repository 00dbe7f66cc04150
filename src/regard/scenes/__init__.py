"""The embedded benchmark: pictures of simple objects rendered from a seed, with questions, answers and regions."""

from regard.scenes.questions import FAMILIES
from regard.scenes.render import Rendered, render
from regard.scenes.splits import SPLITS, Question, Scenes
from regard.scenes.world import COLOURS, HELD_OUT, SHAPES, Scene, Thing, make_scene
from regard.scenes.write import write_scenes

__all__ = [
    "COLOURS",
    "FAMILIES",
    "HELD_OUT",
    "SHAPES",
    "SPLITS",
    "Question",
    "Rendered",
    "Scene",
    "Scenes",
    "Thing",
    "make_scene",
    "render",
    "write_scenes",
]
