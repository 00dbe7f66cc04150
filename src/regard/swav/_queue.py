"""A queue of past embeddings, for balanced codes with small batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> tuple[int, int]:
    """The rank of this process, and the number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Queue:
    """The last `length` embeddings of each of `views` views, over all processes; each process has its part.

    It is used only when full. Not a buffer of a module: data-parallel training copies buffers from the first process
    to the others, and would overwrite their parts.

    >>> queue = Queue(length=3, dim=1, views=1)
    >>> for i in range(4):
    ...     queue.push(torch.tensor([[[float(i)]]]))
    >>> queue.full, queue.rows.flatten()
    (True, tensor([1., 2., 3.]))
    """

    def __init__(self, length: int, dim: int, views: int = 2) -> None:
        self.length = length
        self._rows = torch.zeros(views, 0, dim)
        self._restored = False

    @property
    def share(self) -> int:
        """The number of rows of this process."""
        return self.length // world()[1]

    @property
    def rows(self) -> Tensor:
        """The embeddings of this process, oldest first: (views, at most `share`, dim)."""
        if self._restored:  # a checkpoint has the rows of all processes; the rank may be known only now
            rank, processes = world()
            self._rows = self._rows.chunk(processes, 1)[rank] if processes > 1 else self._rows
            self._restored = False
        return self._rows

    @property
    def full(self) -> bool:
        """Whether it has `length` > 0 embeddings."""
        return self.length > 0 and self.rows.shape[1] >= self.share > 0

    def push(self, z: Tensor) -> None:
        """Append embeddings (views, B, dim), and drop the oldest."""
        if self.share:
            rows = self.rows.to(z.device, z.dtype)
            self._rows = torch.cat([rows, z.detach()], 1)[:, -self.share :].contiguous()

    def state(self) -> dict[str, Any]:
        """The rows of all processes, in the order of the processes. All must call it."""
        rows = self.rows.contiguous()
        processes = world()[1]
        if processes > 1:
            parts = [torch.empty_like(rows) for _ in range(processes)]
            dist.all_gather(parts, rows)
            rows = torch.cat(parts, 1)
        return {"rows": rows.cpu()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a `state`."""
        self._rows, self._restored = state["rows"], True
