"""A ResNet for small pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from regard import _check

Norm = Literal["batch", "group"]


class SmallResNet(nn.Module):
    """Residual network for pictures of about 8 to 100 pixels: (B, 3, H, W) to (B, dim, h, w).

    A 3 x 3 convolution, then stages of residual blocks; every stage but the first halves the resolution.

    `widths`: channels of each stage; default (32, 64, 128).
    `depths`: residual blocks of each stage; default (1, 1, 1).
    `stem_stride`: of the first convolution; default 1.
    `norm`: "batch" (default), or "group", which needs no statistics of the batch.

    >>> import torch
    >>> net = SmallResNet(widths=(8, 16), depths=(1, 1))
    >>> net(torch.zeros(2, 3, 12, 12)).shape, net.dim
    (torch.Size([2, 16, 6, 6]), 16)
    """

    def __init__(
        self,
        widths: Sequence[int] = (32, 64, 128),
        depths: Sequence[int] = (1, 1, 1),
        stem_stride: int = 1,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        _check.choice("norm", norm, ("batch", "group"))
        if not widths or len(widths) != len(depths):
            _check.complain("depths", f"{len(depths)} stages", f"one depth for each of {len(widths)} widths", "Match.")
        for depth in depths:
            _check.count("depths", depth)
        self.settings: dict[str, Any] = {
            "widths": list(widths),
            "depths": list(depths),
            "stem_stride": _check.count("stem_stride", stem_stride),
            "norm": norm,
        }
        self.dim = widths[-1]
        self.stem = nn.Sequential(_conv(3, widths[0], stem_stride), _norm(norm, widths[0]), nn.ReLU(inplace=True))
        inputs = widths[0]
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            stride = 1 if i == 0 else 2
            blocks = [
                _Residual(inputs if j == 0 else width, width, stride if j == 0 else 1, norm) for j in range(depth)
            ]
            # The names layer1, layer2, ... are those that `insert_nonlocal` looks for.
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
            inputs = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """The feature map."""
        return self.stages(x)[-1]

    def stages(self, x: Tensor) -> list[Tensor]:
        """The maps of all stages, in one pass; the last is the feature map."""
        x, maps = self.stem(x), []
        for i in range(len(self.settings["widths"])):
            x = self.get_submodule(f"layer{i + 1}")(x)
            maps.append(x)
        return maps


class _Residual(nn.Module):
    """Two 3 x 3 convolutions and the input added."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, stride)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = _conv(outputs, outputs, 1)
        self.norm2 = _norm(norm, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The sum after a ReLU."""
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


def _conv(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def _norm(kind: Norm, width: int) -> nn.Module:
    """A batch norm, or a group norm with as many as 8 groups."""
    if kind == "batch":
        return nn.BatchNorm2d(width)
    groups = next(g for g in (8, 4, 2, 1) if width % g == 0)
    return nn.GroupNorm(groups, width)
