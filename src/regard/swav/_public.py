"""The public names of regard.swav, imported when the first of them is used."""

from regard.swav._bank import Bank, spherical_kmeans
from regard.swav._canvases import Canvases
from regard.swav._crops import views
from regard.swav._diagnose import Watch, measure
from regard.swav._digits import digits
from regard.swav._evaluate import BackboneEvaluation, Proportion, evaluate_backbone, knn, pooled_features, probe
from regard.swav._finetune import Finetuning, finetune, load_finetuned
from regard.swav._finetune_settings import FINETUNE_PRESETS, FinetuneSettings, finetune_preset
from regard.swav._finetune_task import FineTune
from regard.swav._loss import assigned_loss, codes, swapped_loss
from regard.swav._model import Swav
from regard.swav._presets import PRESETS, preset
from regard.swav._pretrain import CollapseWarning, Pretraining, load_pretraining, pretrain, run
from regard.swav._queue import Queue
from regard.swav._settings import Crops, Settings
from regard.swav._sheet import sheet

__all__ = [
    "FINETUNE_PRESETS",
    "PRESETS",
    "BackboneEvaluation",
    "Bank",
    "Canvases",
    "CollapseWarning",
    "Crops",
    "FineTune",
    "FinetuneSettings",
    "Finetuning",
    "Pretraining",
    "Proportion",
    "Queue",
    "Settings",
    "Swav",
    "Watch",
    "assigned_loss",
    "codes",
    "digits",
    "evaluate_backbone",
    "finetune",
    "finetune_preset",
    "knn",
    "load_finetuned",
    "load_pretraining",
    "measure",
    "pooled_features",
    "preset",
    "pretrain",
    "probe",
    "run",
    "sheet",
    "spherical_kmeans",
    "swapped_loss",
    "views",
]
