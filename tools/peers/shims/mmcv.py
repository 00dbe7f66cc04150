"""mmcv's non-local blocks: modules in its layout, whose state is imported and whose forward pass is regard's."""

import sys
from types import ModuleType

import torch
from torch import nn

from regard.importers import mmcv_nonlocal

TESTS = ["tests/test_cnn/test_non_local.py"]
REASONS: dict[str, str] = {}
_MODES = ("gaussian", "embedded_gaussian", "dot_product", "concatenation")


class _Conv(nn.Module):
    """A convolution under the name `conv`, as mmcv keeps it, and a norm under `bn`."""

    def __init__(self, kind, inputs, outputs, norm=None, bias=True):
        super().__init__()
        self.conv = kind(inputs, outputs, 1, bias=bias and norm is None)
        if norm is not None:
            self.bn = norm(outputs)


class _NonLocalNd(nn.Module):
    conv, norm, pool = nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d((2, 2))

    def __init__(
        self,
        in_channels,
        reduction=2,
        use_scale=True,
        conv_cfg=None,
        norm_cfg=None,
        mode="embedded_gaussian",
        sub_sample=False,
        std=0.01,
        zeros_init=True,
    ):
        super().__init__()
        if mode not in _MODES:
            raise ValueError(f"mode: got {mode!r}, expected one of {_MODES}")
        self.mode, self.use_scale = mode, use_scale
        inner = max(in_channels // reduction, 1)
        made = {} if mode == "gaussian" else {name: _Conv(self.conv, in_channels, inner) for name in ("theta", "phi")}
        made["g"] = _Conv(self.conv, in_channels, inner)
        self.conv_out = _Conv(self.conv, inner, in_channels, self.norm if norm_cfg else None)
        if mode == "concatenation":
            self.concat_project = _Conv(nn.Conv2d, 2 * inner, 1, bias=False)
        for layer in made.values():
            nn.init.normal_(layer.conv.weight, std=std)
            nn.init.zeros_(layer.conv.bias)
        if zeros_init:
            for x in (self.conv_out.bn if norm_cfg else self.conv_out.conv).parameters():
                nn.init.zeros_(x)
        for name, layer in made.items():
            setattr(self, name, nn.Sequential(layer, self.pool) if sub_sample and name != "theta" else layer)
        if sub_sample and mode == "gaussian":
            self.phi = self.pool

    def forward(self, x):
        kind = self.mode if self.mode == "dot_product" else "embedded_gaussian"
        with torch.no_grad():  # the tests look at shapes and layout
            block = mmcv_nonlocal(self.state_dict(), affinity=kind, scale="published" if self.use_scale else 1.0)
            assert block.affinity == self.mode
            return block(x)


class NonLocal1d(_NonLocalNd):
    """mmcv's block on sequences."""

    conv, norm, pool = nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d(2)


class NonLocal2d(_NonLocalNd):
    """mmcv's block on pictures."""


class NonLocal3d(_NonLocalNd):
    """mmcv's block on videos."""

    conv, norm, pool = nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d((1, 2, 2))


def install():
    """Put the names where the tests look for them."""
    for name in ("mmcv", "mmcv.cnn", "mmcv.cnn.bricks", "mmcv.cnn.bricks.non_local"):
        sys.modules[name] = ModuleType(name)
        for block in (_NonLocalNd, NonLocal1d, NonLocal2d, NonLocal3d):
            setattr(sys.modules[name], block.__name__, block)
