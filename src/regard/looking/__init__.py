"""Where a model looks: what `regard look` draws, writes and scores."""

from regard.looking.look import Look, look, look_at_patches
from regard.looking.model import VisionModel
from regard.looking.regions import PictureWithRegion, read_pairs
from regard.looking.score import HeadScore, score, write_scores

__all__ = [
    "HeadScore",
    "Look",
    "PictureWithRegion",
    "VisionModel",
    "look",
    "look_at_patches",
    "read_pairs",
    "score",
    "write_scores",
]
