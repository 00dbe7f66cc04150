"""Tensors by name, each of which must be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard import _check


class Named:
    """The tensors whose names begin with a prefix, taken out one by one; `done` raises an error if any is left.

    `argument`: name of the caller's argument, for errors.
    `state`: tensors or arrays by name; arrays become tensors.
    `prefix`: of the names that are taken.
    `layout`: whose layout this is, for errors.
    """

    def __init__(self, argument: str, state: Mapping[str, Any], prefix: str, layout: str) -> None:
        """Take the part of `state` that has the prefix."""
        if not isinstance(state, Mapping):
            remedy = "Read the file first: torch.load(path, weights_only=True), or safetensors' load_file."
            _check.complain(argument, type(state).__name__, "tensors or arrays by name", remedy, TypeError)
        self.argument, self.prefix, self.layout = argument, prefix, layout
        self.left = {name[len(prefix) :]: x for name, x in state.items() if str(name).startswith(prefix)}

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Remove and return a tensor, in float32 if it is float16 or integer; an error if it has another shape."""
        if name not in self.left:
            known = ", ".join(sorted(self.left)[:6]) or "nothing"
            expected = f"{self.prefix}{name}, as {self.layout} has it"
            _check.complain(self.argument, f"{known} after {self.prefix!r}", expected, "Check the prefix.")
        x = torch.as_tensor(self.left.pop(name)).detach()
        if shape is not None and tuple(x.shape) != shape:
            got = f"{self.prefix}{name} of shape {tuple(x.shape)}"
            _check.complain(self.argument, got, str(shape), "Is the file of such a block?")
        return x if x.is_floating_point() and x.dtype != torch.float16 else x.float()

    def done(self, *may_stay: str) -> None:
        """Check that nothing is left, except the names in `may_stay`, which have no meaning here."""
        left = [name for name in sorted(self.left) if name not in may_stay]
        if left:
            got = ", ".join(f"{self.prefix}{name}" for name in left[:4])
            _check.complain(self.argument, got, f"only what {self.layout} has", "This block is another one.")
