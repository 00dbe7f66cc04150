"""Weights by name out of a file, and into a module: each has its place, or is named in an error."""

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

    A dictionary under "state_dict" is taken alone, and "module." is cut off if all names begin with it. Of a pickle
    only tensors and plain values are read: nothing in it is run.
    """
    found: Any = source
    if not isinstance(source, Mapping):
        path = Path(source)
        if not path.is_file():
            raise Problem(f"{path} is not a file. Give a checkpoint.")
        found = _from_file(path)
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    named = "the dictionary" if isinstance(source, Mapping) else source
    if not isinstance(found, Mapping) or not found or not all(isinstance(w, Tensor) for w in found.values()):
        raise Problem(f"{named} holds no weights by name, nor a state_dict. Give the checkpoint of a model.")
    whole = all(str(name).startswith("module.") for name in found)
    return {str(name).removeprefix("module.") if whole else str(name): w.detach() for name, w in found.items()}


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
    except Exception as error:  # what is broken can raise anything, and torch's words go over many lines
        raise Problem(
            f"{path} cannot be read as tensors and plain values ({type(error).__name__}): nothing else of a pickle is "
            "loaded, as it could run code. Save its state_dict alone with torch.save."
        ) from error


def shape_of(weights: Weights, name: str, model: str) -> tuple[int, ...]:
    """The shape of a weight that must be there."""
    if name not in weights:
        raise Problem(f"there is no weight {name}: this is no checkpoint of {model}. Its first is {min(weights)}.")
    return tuple(weights[name].shape)


def count_of(weights: Weights, prefix: str) -> int:
    """How many numbers follow `prefix` in the names of weights: prefix0, prefix1, ..."""
    found = {name[len(prefix) :].split(".")[0] for name in weights if name.startswith(prefix)}
    return len({number for number in found if number.isdecimal()})


def fill(module: nn.Module, made: Weights, left: Weights, model: str) -> None:
    """Put `made` into a module; a `Problem` that names what is missing, has another shape, or is `left` over."""
    if left:
        some = ", ".join(sorted(left)[:5])
        raise Problem(f"{len(left)} weights have no place in {model}: {some}. Give a checkpoint without them.")
    have = module.state_dict()
    wrong = [
        f"{name} {tuple(made[name].shape)}, not {tuple(have[name].shape)}"
        for name in sorted(made.keys() & have.keys())
        if made[name].shape != have[name].shape
    ]
    wrong += [f"{name} is missing" for name in sorted(have.keys() - made.keys())]
    wrong += [f"{name} has no place" for name in sorted(made.keys() - have.keys())]
    if wrong:
        raise Problem(f"the weights are not those of {model}: {'; '.join(wrong[:5])}. Check the checkpoint.")
    module.load_state_dict(made)


class Supply:
    """Weights that are taken one by one: what nobody has taken is left over."""

    def __init__(self, weights: Weights, model: str) -> None:
        self.left, self.model = dict(weights), model

    def __call__(self, name: str) -> Tensor:
        """The weight of this name, once."""
        if name not in self.left:
            raise Problem(f"there is no weight {name}: this is no checkpoint of {self.model}.")
        return self.left.pop(name)
