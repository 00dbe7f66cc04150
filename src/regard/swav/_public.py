"""The public names of regard.swav, imported when the first of them is used."""

from regard.swav._crops import views
from regard.swav._diagnose import Watch, measure
from regard.swav._digits import digits
from regard.swav._evaluate import BackboneEvaluation, Proportion, evaluate_backbone, knn, pooled_features, probe
from regard.swav._loss import codes, swapped_loss
from regard.swav._model import Canvases, Swav
from regard.swav._pretrain import CollapseWarning, Pretraining, load_pretraining, pretrain, run
from regard.swav._queue import Queue
from regard.swav._settings import PRESETS, Crops, Settings, preset
from regard.swav._sheet import sheet

__all__ = [
    "PRESETS",
    "BackboneEvaluation",
    "Canvases",
    "CollapseWarning",
    "Crops",
    "Pretraining",
    "Proportion",
    "Queue",
    "Settings",
    "Swav",
    "Watch",
    "codes",
    "digits",
    "evaluate_backbone",
    "knn",
    "load_pretraining",
    "measure",
    "pooled_features",
    "preset",
    "pretrain",
    "probe",
    "run",
    "sheet",
    "swapped_loss",
    "views",
]
