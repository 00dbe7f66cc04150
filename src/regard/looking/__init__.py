"""Where a model looks: what `regard look` draws, writes and scores."""

from regard.looking.load import load_looking, load_vision
from regard.looking.look import Look, look, look_at_patches, with_ending, write_looks
from regard.looking.maps_side_by_side import MeasuredWeights, maps_of, measure_weights, region_on_grid
from regard.looking.model import LookingModel, map_to_exchange
from regard.looking.prompted import PromptedModel
from regard.looking.regions import PictureWithRegion, read_pairs
from regard.looking.score import HeadScore, score, write_scores
from regard.looking.views import HeadScores, ModelView, PatchView, View
from regard.looking.vision import PatchTower, VisionModel

__all__ = [
    "HeadScore",
    "HeadScores",
    "Look",
    "LookingModel",
    "MeasuredWeights",
    "ModelView",
    "PatchTower",
    "PatchView",
    "PictureWithRegion",
    "PromptedModel",
    "View",
    "VisionModel",
    "load_looking",
    "load_vision",
    "look",
    "look_at_patches",
    "map_to_exchange",
    "maps_of",
    "measure_weights",
    "read_pairs",
    "region_on_grid",
    "score",
    "with_ending",
    "write_looks",
    "write_scores",
]
