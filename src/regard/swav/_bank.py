"""Assignments of the whole set, made at the start of an epoch from the embeddings of the epoch before.

DeepCluster-v2 takes the nearest centroid of spherical k-means, SeLa-v2 the largest entry of a row of the plan.
Legend: N samples of the whole set, n those of this process, D dimension of an embedding, K prototypes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from regard._problem import Problem
from regard.swav._queue import world
from regard.training import generator

UNASSIGNED = -1  # the assignment of a sample whose embedding was not stored
_CHUNK = 1 << 14  # embeddings that are compared with all centroids at a time
_DRAW = 401  # key of the random numbers that choose the first centroids


class Bank:
    """The embeddings of this epoch, and the assignments that were made from those of the last one.

    Each process stores the embeddings of its own samples, and has the assignments of all. Not buffers of a module, for
    the reason that `Queue` gives.

    >>> bank = Bank(dim=2)
    >>> bank.begin(samples=3)
    >>> bank.push(torch.tensor([2, 0]), torch.eye(2))
    >>> index, rows = bank.take()
    >>> bank.assign(0, index, torch.tensor([7, 5]))
    >>> bank.epoch, bank.labels
    (0, tensor([ 5, -1,  7]))
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.epoch = -1  # that the assignments are for
        self.residual = 0.0  # of the plan that they come from
        self.labels = torch.empty(0, dtype=torch.int64)
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._restored = False

    def begin(self, samples: int) -> None:
        """Forget everything, for a set of so many samples."""
        self.epoch, self.residual = -1, 0.0
        self.labels = torch.full((samples,), UNASSIGNED)
        self._parts, self._restored = [], False

    def push(self, index: Tensor, z: Tensor) -> None:
        """Store the embeddings (B, D) of samples (B,)."""
        self._share_out()
        self._parts.append((index.cpu(), z.detach()))

    def take(self) -> tuple[Tensor, Tensor]:
        """The samples (n,) of this process and their embeddings (n, D), in the order in which they came; then empty."""
        index, rows = self._stored()
        self._parts = []
        return index, rows

    def assign(self, epoch: int, index: Tensor, labels: Tensor, residual: float = 0.0) -> None:
        """Set the assignments of an epoch, from those (n,) of the samples (n,) of each process. All must call it."""
        found = torch.full_like(self.labels, UNASSIGNED, device=labels.device)
        found[index.to(labels.device)] = labels
        if world()[1] > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        self.labels, self.epoch, self.residual = found.cpu(), epoch, residual

    def code(self, index: Tensor, prototypes: int) -> tuple[Tensor, Tensor]:
        """Assignments (B,) of samples, and the same as distributions (B, K), uniform where unknown."""
        labels = self.labels[index.cpu()].to(index.device)
        known = (labels != UNASSIGNED).unsqueeze(-1)
        return labels, torch.where(known, one_hot(labels.clamp(min=0), prototypes).float(), 1 / prototypes)

    def state(self) -> dict[str, Any]:
        """The embeddings of all processes, in the order of the processes, and the assignments. All must call it."""
        index, rows = (_gathered(part) for part in self._stored())
        content = {"index": index.cpu(), "rows": rows.cpu(), "labels": self.labels}
        return {**content, "epoch": self.epoch, "residual": self.residual}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a `state`."""
        self.labels, self.epoch, self.residual = state["labels"], state["epoch"], state["residual"]
        self._parts, self._restored = [(state["index"], state["rows"])], True

    def _stored(self) -> tuple[Tensor, Tensor]:
        self._share_out()
        if not self._parts:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, self.dim)
        device = self._parts[-1][1].device
        index, rows = zip(*self._parts, strict=True)
        return torch.cat(index), torch.cat([part.to(device) for part in rows])

    def _share_out(self) -> None:
        """Keep this process's part of what a checkpoint has; its rank may be known only now."""
        if self._restored:
            rank, processes = world()
            index, rows = (part.tensor_split(processes)[rank] for part in self._parts[0])
            self._parts = [(index, rows)]
            self._restored = False


def first_centroids(index: Tensor, rows: Tensor, count: int, samples: int, seed: int) -> Tensor:
    """The embeddings (count, D) of randomly chosen samples, the same in all processes. All must call it.

    `index`, `rows`: samples (n,) of this process and their embeddings (n, D).
    `count`: how many.
    `samples`: N.
    `seed`: of the choice, which does not depend on the number of processes.
    """
    place = torch.full((samples,), UNASSIGNED, device=rows.device)
    place[index.to(rows.device)] = torch.arange(len(index), device=rows.device)
    stored = (place != UNASSIGNED).int()
    if world()[1] > 1:
        dist.all_reduce(stored)
    order = torch.randperm(samples, generator=generator(seed, _DRAW)).to(rows.device)
    chosen = order[stored[order] > 0][:count]
    if len(chosen) < count:
        raise Problem(f"{len(chosen)} pictures cannot make {count} clusters. Take fewer prototypes, or more pictures.")
    mine = place[chosen]
    drawn = torch.where((mine != UNASSIGNED).unsqueeze(-1), rows[mine.clamp(min=0)] if len(rows) else 0.0, 0.0)
    if world()[1] > 1:
        dist.all_reduce(drawn)
    return drawn


def spherical_kmeans(
    rows: Tensor, centroids: Tensor, iterations: int = 10, *, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """Clusters of unit vectors by cosine: unit centroids (K, D), and the nearest of them for each row (n,).

    An iteration assigns each row to the centroid with the largest cosine (the first of equal ones), then moves each
    centroid to the mean direction of its rows; one without rows, or whose rows cancel, stays. Without gradient.

    `rows`: (n, D), unit vectors.
    `centroids`: (K, D), to begin with.
    `iterations`: default 10.
    `group`: processes whose rows are clustered together; default None, this process alone.

    >>> rows = normalize(torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]]), dim=-1)
    >>> centroids, labels = spherical_kmeans(rows, rows[:2], iterations=5)
    >>> labels
    tensor([1, 1, 0])
    """
    rows, centroids = rows.detach(), normalize(centroids.detach(), dim=-1)
    for _ in range(iterations):
        labels = _nearest(rows, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, labels, rows)
        if group is not None:
            dist.all_reduce(sums, group=group)
        lengths = sums.norm(dim=-1, keepdim=True)
        centroids = torch.where(lengths > 1e-12, sums / lengths.clamp(min=1e-12), centroids)
    return centroids, _nearest(rows, centroids)


def _nearest(rows: Tensor, centroids: Tensor) -> Tensor:
    """The number of the centroid with the largest cosine, for each row."""
    if not len(rows):
        return torch.empty(0, dtype=torch.int64, device=rows.device)
    return torch.cat([(part @ centroids.T).argmax(-1) for part in rows.split(_CHUNK)])


def _gathered(x: Tensor) -> Tensor:
    """The rows (n, ...) of all processes, which may have different numbers of them, in the order of the processes."""
    processes = world()[1]
    if processes == 1:
        return x
    counts = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(processes)]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device))
    most = max(int(count) for count in counts)
    padded = torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])]).contiguous()
    parts = [torch.empty_like(padded) for _ in range(processes)]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])
