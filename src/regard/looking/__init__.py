"""Where a model looks: what `regard look` draws, writes and scores."""

from regard.looking.look import Looked, look, look_at_patches
from regard.looking.model import VisionModel
from regard.looking.regions import Pair, read_pairs
from regard.looking.score import HeadScore, score, write_scores

__all__ = [
    "HeadScore",
    "Looked",
    "Pair",
    "VisionModel",
    "look",
    "look_at_patches",
    "read_pairs",
    "score",
    "write_scores",
]
