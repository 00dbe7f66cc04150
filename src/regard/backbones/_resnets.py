"""Architectures of transformers models that are known here: one without weights needs no file and no network."""

from __future__ import annotations

from typing import Any

_BASIC: dict[str, Any] = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
_BOTTLENECK: dict[str, Any] = {"layer_type": "bottleneck", "hidden_sizes": [256, 512, 1024, 2048]}

#: The residual networks of He et al. (2016), Table 1, by their names on the Hub: arguments of `ResNetConfig`.
RESNETS: dict[str, dict[str, Any]] = {
    "microsoft/resnet-18": {**_BASIC, "depths": [2, 2, 2, 2]},
    "microsoft/resnet-26": {**_BOTTLENECK, "depths": [2, 2, 2, 2]},
    "microsoft/resnet-34": {**_BASIC, "depths": [3, 4, 6, 3]},
    "microsoft/resnet-50": {**_BOTTLENECK, "depths": [3, 4, 6, 3]},
    "microsoft/resnet-101": {**_BOTTLENECK, "depths": [3, 4, 23, 3]},
    "microsoft/resnet-152": {**_BOTTLENECK, "depths": [3, 8, 36, 3]},
}


def resnet_config(name: str) -> Any:
    """The configuration of a transformers model by its name on the Hub; None if it is not known here.

    >>> resnet_config("microsoft/resnet-50").depths, resnet_config("someone/model")
    ([3, 4, 6, 3], None)
    """
    if name not in RESNETS:
        return None
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=64, hidden_act="relu", downsample_in_first_stage=False, **RESNETS[name])
