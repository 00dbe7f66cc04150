"""Dropout, and the state of the random number generator, with which a backward pass repeats the forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def with_dropout(p: Tensor, share: float) -> Tensor:
    """Weights with a `share` of them set to zero, and the others scaled up to the same expectation.

    Which ones depends on the generator and the shape only, not on whether a gradient is needed.

    >>> with_dropout(torch.ones(1000), 0.25).unique()
    tensor([0.0000, 1.3333])
    """
    return torch.where(torch.rand_like(p) >= share, p / (1 - share), 0.0) if share > 0 else p


@dataclass(frozen=True)
class RandomState:
    """The state of the random number generator of a device."""

    device: torch.device
    state: Tensor | None  # None on the meta device

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """The current state."""
        if device.type == "meta":
            return cls(device, None)
        return cls(device, torch.get_rng_state() if device.type == "cpu" else _of(device).get_rng_state(device))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run the block with this state, and restore the current one afterwards."""
        if self.state is None:
            yield
        elif self.device.type == "cpu":
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self.state)
                yield
        else:
            with torch.random.fork_rng(devices=[self.device.index or 0], device_type=self.device.type):
                _of(self.device).set_rng_state(self.state, self.device)
                yield


def _of(device: torch.device) -> Any:
    return torch.get_device_module(device)
