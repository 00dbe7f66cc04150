"""From pictures to grids of features: the last map of a backbone, or the maps of all its stages concatenated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from regard.backbones import Backbone


def grids(backbone: Backbone, prepared: Tensor, stages: bool = False) -> Tensor:
    """Grids (B, h, w, D) of prepared pictures (B, 3, H, W).

    With `stages` (default False), the maps of all stages (`Backbone.stages`) are averaged to the size of the last one
    and concatenated along the channels: the first stages of a backbone keep colours and outlines, the last may not.

    >>> from regard.backbones import make_backbone
    >>> backbone = make_backbone("small", size=16, widths=[4, 8], depths=[1, 1])
    >>> x = torch.zeros(1, 3, 16, 16)
    >>> grids(backbone, x).shape, grids(backbone, x, stages=True).shape
    (torch.Size([1, 8, 8, 8]), torch.Size([1, 8, 8, 12]))
    """
    if not stages:
        last: Tensor = backbone(prepared)
        return last.permute(0, 2, 3, 1)
    maps = backbone.stages(prepared)
    height, width = maps[-1].shape[-2:]
    return torch.cat([adaptive_avg_pool2d(x, (height, width)) for x in maps], 1).permute(0, 2, 3, 1)
