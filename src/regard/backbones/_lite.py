"""EfficientNet-Lite: EfficientNet (Tan and Le 2019) with ReLU6, without squeeze-and-excitation, for small devices."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard._problem import Problem
from regard.backbones._known import FAMILY, NAME

# Kernel, stride, expansion, width and number of blocks of each stage of lite0: Table 1 of the paper.
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
# Factor of widths, factor of depths and side of the picture, of lite0 to lite4. Stem and head are the same in all.
_SCALES = ((1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260), (1.2, 1.4, 280), (1.4, 1.8, 300))
_STEM, _HEAD = 32, 1280
_DROP = 0.2  # probability that a sample skips the last block in training; it grows linearly from 0 with depth


class Lite(nn.Module):
    """The convolutions of "efficientnet-lite0" to "-lite4": (B, 3, H, W) to (B, 1280, h, w), h about H / 32.

    Stages are `layer1` to `layer7`. Padding is TensorFlow's "same" for pictures of side `size`, which the network is
    trained on, and does not change with other sides, so that kernels are aligned with the picture's first pixels as in
    training; a side of n is floor or ceil(n / 2) after a stride of 2, by the stage. In training, samples skip residual
    blocks at random (stochastic depth).

    >>> network = Lite("efficientnet-lite0")
    >>> network.size, network(torch.zeros(1, 3, 64, 96)).shape
    (224, torch.Size([1, 1280, 2, 3]))
    """

    def __init__(self, name: str) -> None:
        """Make the layers, with random weights as by the paper's authors."""
        super().__init__()
        if not (match := NAME.fullmatch(name)):
            raise Problem(f"name: got {name!r}, expected {FAMILY}0 to {FAMILY}4. Choose one of these.")
        wider, deeper, self.size = _SCALES[int(match[1])]
        self.dim = _HEAD
        last = len(_STAGES) - 1
        depths = [n if i in (0, last) else math.ceil(deeper * n) for i, (*_, n) in enumerate(_STAGES)]
        rates = (_DROP * i / sum(depths) for i in range(sum(depths)))
        self.stem = _conv_norm(3, _STEM, 3, 2, self.size)
        inputs, side = _STEM, math.ceil(self.size / 2)
        for i, ((kernel, stride, expansion, width, _), depth) in enumerate(zip(_STAGES, depths, strict=True)):
            stage = nn.Sequential()
            for _ in range(depth):
                stage.append(_Block(inputs, _rounded(width * wider), kernel, stride, expansion, side, next(rates)))
                inputs, side, stride = _rounded(width * wider), math.ceil(side / stride), 1
            self.add_module(f"layer{i + 1}", stage)
        self.head = _conv_norm(inputs, _HEAD)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                out = module.weight[0, 0].numel() * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / out))

    def forward(self, x: Tensor) -> Tensor:
        """The feature map."""
        out: Tensor = self.head(self.stages(x)[-1])
        return out

    def stages(self, x: Tensor) -> list[Tensor]:
        """The maps of all stages, in one pass, without that of the head."""
        x, maps = self.stem(x), []
        for i in range(len(_STAGES)):
            x = self.get_submodule(f"layer{i + 1}")(x)
            maps.append(x)
        return maps

    def blocks(self) -> Iterator[str]:
        """The names of the residual blocks, from the first to the last."""
        return (name for name, module in self.named_modules() if isinstance(module, _Block))


class _Block(nn.Module):
    """Inverted residual: expansion, depthwise convolution, projection; the input is added if the shapes are equal."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int, side: int, rate: float
    ) -> None:
        super().__init__()
        wide = inputs * expansion
        self.rate, self.residual = rate, stride == 1 and inputs == outputs
        self.expand = _conv_norm(inputs, wide) if expansion > 1 else nn.Identity()
        self.filter = _conv_norm(wide, wide, kernel, stride, side, groups=wide)
        self.project = _conv_norm(wide, outputs, active=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's map."""
        y: Tensor = self.project(self.filter(self.expand(x)))
        if not self.residual:
            return y
        if self.training and self.rate:
            kept_samples = torch.rand(len(x), 1, 1, 1, dtype=x.dtype, device=x.device) >= self.rate
            y = y * kept_samples / (1 - self.rate)
        return x + y


def _conv_norm(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, side: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    """A convolution without bias, its batch norm, and ReLU6.

    `inputs`, `outputs`: channels.
    `kernel`: its side; default 1.
    `stride`: default 1.
    `side`: of the maps that it is padded for; default 1.
    `groups`: of the convolution; default 1.
    `active`: default True; False leaves ReLU6 out.
    """
    before, after = same_padding(side, kernel, stride)
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if before != after:
        parts["pad"] = nn.ZeroPad2d((before, after, before, after))
        before = 0
    parts["conv"] = nn.Conv2d(inputs, outputs, kernel, stride, before, groups=groups, bias=False)
    parts["norm"] = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
    if active:
        parts["relu"] = nn.ReLU6(inplace=True)
    return nn.Sequential(parts)


def same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after `side` entries, so that a convolution gives ceil(side / stride) as TensorFlow's "same".

    >>> same_padding(224, 3, 2), same_padding(65, 5, 2), same_padding(7, 1, 1)
    ((0, 1), (2, 2), (0, 0))
    """
    zeros = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    return zeros // 2, zeros - zeros // 2


def _rounded(width: float) -> int:
    """The nearest multiple of 8, or the next higher one if that is more than a tenth smaller."""
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * width else nearest + 8
