"""Weights by name, read from a file and loaded into a module: one without a place is named in an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard._problem import Problem

Weights = dict[str, Tensor]


def read_weights(source: Path | str | Mapping[str, Any]) -> Weights:
    """The weights of a file (safetensors, or what torch.save wrote), or of a dictionary, by name.

    Of a dictionary with "state_dict" only that part is taken, and the prefix "module." is removed if all names have it.
    Only tensors and plain values of a pickle are read: no code in it is run.
    """
    content: Any = source
    if not isinstance(source, Mapping):
        path = Path(source)
        if not path.is_file():
            raise Problem(f"{path} is not a file. Give a checkpoint.")
        content = _from_file(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    origin = "the dictionary" if isinstance(source, Mapping) else source
    if not isinstance(content, Mapping) or not content or not all(isinstance(w, Tensor) for w in content.values()):
        raise Problem(f"{origin} holds no weights by name, nor a state_dict. Give the checkpoint of a model.")
    prefixed = all(str(name).startswith("module.") for name in content)
    return {str(name).removeprefix("module.") if prefixed else str(name): w.detach() for name, w in content.items()}


def _from_file(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise Problem(f"{path} is broken ({error}). Take another copy.") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file can raise anything, and torch's messages have many lines
        raise Problem(
            f"{path} cannot be read as tensors and plain values ({type(error).__name__}): nothing else of a pickle is "
            "loaded, as it could run code. Save its state_dict alone with torch.save."
        ) from error


def shape_of(weights: Weights, name: str, model: str) -> tuple[int, ...]:
    """The shape of a weight; an error that names the `model` if it is missing."""
    if name not in weights:
        raise Problem(f"there is no weight {name}: this is no checkpoint of {model}. Its first is {min(weights)}.")
    return tuple(weights[name].shape)


def count_of(weights: Weights, prefix: str) -> int:
    """The number of different numbers after `prefix` in the names of weights: prefix0, prefix1, ..."""
    parts = {name[len(prefix) :].split(".")[0] for name in weights if name.startswith(prefix)}
    return len({part for part in parts if part.isdecimal()})


def fill(module: nn.Module, weights: Weights, left: Weights, model: str) -> None:
    """Load weights into a module; a `Problem` names those that are missing, have another shape, or are left over.

    `module`: where to load them.
    `weights`: by the names of the module.
    `left`: weights of the checkpoint that nobody has taken; must be empty.
    `model`: what the checkpoint is of, for errors.
    """
    if left:
        some = ", ".join(sorted(left)[:5])
        raise Problem(f"{len(left)} weights have no place in {model}: {some}. Give a checkpoint without them.")
    state = module.state_dict()
    mismatches = [
        f"{name} {tuple(weights[name].shape)}, not {tuple(state[name].shape)}"
        for name in sorted(weights.keys() & state.keys())
        if weights[name].shape != state[name].shape
    ]
    mismatches += [f"{name} is missing" for name in sorted(state.keys() - weights.keys())]
    mismatches += [f"{name} has no place" for name in sorted(weights.keys() - state.keys())]
    if mismatches:
        raise Problem(f"the weights are not those of {model}: {'; '.join(mismatches[:5])}. Check the checkpoint.")
    module.load_state_dict(weights)


class Supply:
    """Weights that are taken one by one; `left` holds those not taken yet."""

    def __init__(self, weights: Weights, model: str) -> None:
        self.left, self.model = dict(weights), model

    def __call__(self, name: str) -> Tensor:
        """Remove and return the weight of this name."""
        if name not in self.left:
            raise Problem(f"there is no weight {name}: this is no checkpoint of {self.model}.")
        return self.left.pop(name)
