"""The public names of regard.training, imported when the first of them is used."""

from regard.training._checkpoints import Checkpoint
from regard.training._fit import Fitted, Task, fit
from regard.training._folder import RunFolder, latest, read_config
from regard.training._muon import Muon, muon_groups
from regard.training._norm import synchronise_norms
from regard.training._optim import LARC, LARS, cosine, groups
from regard.training._order import Batches, Order, SampleGroups
from regard.training._random import generator, mix, uniform
from regard.training._settings import FitSettings, Running

__all__ = [
    "LARC",
    "LARS",
    "Batches",
    "Checkpoint",
    "FitSettings",
    "Fitted",
    "Muon",
    "Order",
    "RunFolder",
    "Running",
    "SampleGroups",
    "Task",
    "cosine",
    "fit",
    "generator",
    "groups",
    "latest",
    "mix",
    "muon_groups",
    "read_config",
    "synchronise_norms",
    "uniform",
]
