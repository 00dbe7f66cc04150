"""Processes that share work which is no training: features, evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from regard._ranks import launched
from regard.training._device import choose_device
from regard.training._settings import Running


@dataclass(frozen=True)
class Together:
    """This process among those that share the work: number `rank` of `size`, computing on `device`.

    >>> Together().shares([5, 6, 7])
    [5, 6, 7]
    >>> Together(1, 2).shares([5, 6, 7])
    [6]
    """

    rank: int = 0
    size: int = 1
    device: torch.device | str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this process is the first."""
        return self.rank == 0

    def shares(self, items: Any) -> list[Any]:
        """Every `size`-th of the items, from number `rank` on."""
        return list(items)[self.rank :: self.size]

    def gather(self, mine: Any) -> list[Any]:
        """What each process has, in the order of the processes, in all of them."""
        if self.size == 1:
            return [mine]
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, mine)
        return everybody

    def interleave(self, mine: list[Any], count: int) -> list[Any]:
        """The whole of `count` results, of which this process has those of its `shares`."""
        parts = self.gather(mine)
        return [parts[number % self.size][number // self.size] for number in range(count)]

    def first_says(self, what: Any) -> Any:
        """What the first process has, in all of them."""
        return self.gather(what if self.first else None)[0]


def current() -> Together:
    """The processes that train together, once training has begun; else this one alone.

    >>> current().size
    1
    """
    if not dist.is_initialized():
        return Together()
    return Together(dist.get_rank(), dist.get_world_size())


@contextmanager
def together(running: Running | None = None, *, needs_float64: bool = False) -> Iterator[Together]:
    """The processes of a command: those that torchrun has started, or that Lightning starts for `running.devices`.

    None leaves before all are ready. A process that ends with an error ends the others too: they find it gone.

    `running`: its device, devices, machines, strategy and timeout; default one process on the CPU.
    `needs_float64`: whether to leave a device that has none to those who name it; default False.

    >>> with together() as group:
    ...     group.size
    1
    """
    running = running or Running(device="cpu")
    if launched().size == 1 and (running.devices, running.num_nodes) == (1, 1):
        yield Together(device=choose_device(running.device, needs_float64=needs_float64))
        return
    from regard.training._fabric import end_children, launch, make_fabric, quiet  # slow to import

    fabric = make_fabric(running, needs_float64=needs_float64)
    with quiet():
        launch(fabric, running)
    try:
        yield Together(fabric.global_rank, fabric.world_size, fabric.device)
        fabric.barrier()
    except BaseException:
        end_children(fabric)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
