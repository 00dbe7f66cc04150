"""Backbones: networks that turn pictures into a feature map, saved and loaded as safetensors and a config.

    backbone = make_backbone("small")                          # the built-in ResNet for small pictures
    backbone = make_backbone("microsoft/resnet-18")            # a transformers model: a folder or a hub name
    backbone = make_backbone("efficientnet-lite0")             # weights in the extra efficientnet
    backbone = Backbone(my_network, Preparation(size=224))     # any module that returns a feature map
    features = backbone(backbone.prepare(pictures_uint8))      # (B, dim, h, w)
    save_backbone(backbone, "out/backbone"); backbone = load_backbone("out/backbone")

Every backbone has its `dim`, its `config`, and its `preparation` of pictures (size, mean, standard deviation).
"""

from typing import TYPE_CHECKING

from regard._lazy import lazily

if TYPE_CHECKING:
    from regard.backbones._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
