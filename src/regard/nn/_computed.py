"""Modules with buffers that are computed, not learned and not loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

from torch import Tensor, nn


class ComputedBuffers(nn.Module):
    """A module with buffers, those named in `computed`, that are made with values (`with_values`) and not saved.

    They change device with the module and nothing else: a dtype is for parameters, `to_empty` is for what is loaded
    then, and on the meta device they keep their values.
    """

    computed: ClassVar[tuple[str, ...]]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        computed = {name: self._buffers.get(name) for name in self.computed}
        super()._apply(fn, recurse)
        for name, original in computed.items():
            converted = self._buffers.get(name)
            if original is not None and converted is not None:
                self._buffers[name] = original if converted.is_meta else original.to(converted.device)
        return self
