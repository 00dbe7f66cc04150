"""The public names of regard.backbones, imported when the first of them is used."""

from regard.backbones._backbone import Backbone, Preparation
from regard.backbones._files import fingerprint, load_backbone, make_backbone, save_backbone, untrained
from regard.backbones._found import FoundBackbone, found_backbones
from regard.backbones._small import SmallResNet

__all__ = [
    "Backbone",
    "FoundBackbone",
    "Preparation",
    "SmallResNet",
    "fingerprint",
    "found_backbones",
    "load_backbone",
    "make_backbone",
    "save_backbone",
    "untrained",
]
