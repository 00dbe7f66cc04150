"""Summaries of weights that are all in memory, one row and one number at a time."""

import math

import torch
from torch import Tensor


def entropy(p: Tensor) -> Tensor:
    """Of each row divided by its sum, in nats; zero for a row of zeros."""
    rows = p.double().reshape(-1, p.shape[-1]).tolist()
    made = [-sum(w / sum(row) * math.log(w / sum(row)) for w in row if w > 0) if sum(row) > 0 else 0.0 for row in rows]
    return torch.tensor(made, dtype=torch.float64).reshape(p.shape[:-1])


def effective(p: Tensor) -> Tensor:
    """e to the entropy; zero for a row of zeros."""
    return torch.where(p.sum(-1) > 0, entropy(p).exp(), 0.0)


def support(p: Tensor) -> Tensor:
    """How many weights of a row are not zero."""
    return (p != 0).sum(-1)


def received(p: Tensor) -> Tensor:
    """The sum of each column."""
    return sum(p[..., i, :] for i in range(p.shape[-2]))


def top(p: Tensor, n: int) -> Tensor:
    """The n largest weights of each row."""
    return p.sort(-1, descending=True).values[..., :n]


def mass(p: Tensor, regions: Tensor) -> Tensor:
    """The weights of a row times the shares of each region (..., M, Lk), summed: (..., Lq, M)."""
    return (p.unsqueeze(-2) * regions.unsqueeze(-3)).sum(-1)


def rollout(layers: list[Tensor], residual: float = 0.5) -> Tensor:
    """The product of the layers' mean weights, each mixed with the identity: (..., L, L)."""
    whole = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for p in layers:
        whole = (residual * torch.eye(p.shape[-1], dtype=p.dtype) + (1 - residual) * p.mean(-3)) @ whole
    return whole


def flow(layers: list[Tensor], row: int, sink: int, residual: float = 0.5) -> float:
    """The maximum flow from an output token to an input token, by augmenting the shortest path until there is none.

    `layers`: weights (H, L, L), from the first to the last.
    """
    room: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for above, p in enumerate(layers, 1):
        capacity = residual * torch.eye(p.shape[-1], dtype=p.dtype) + (1 - residual) * p.mean(0)
        for i, weights in enumerate(capacity.tolist()):
            for j, weight in enumerate(weights):
                room.setdefault((above, i), {})[above - 1, j] = weight
                room.setdefault((above - 1, j), {})[above, i] = 0.0
    source, target, carried = (len(layers), row), (0, sink), 0.0
    while True:
        before, queue = {source: source}, [source]
        for node in queue:
            for other, left in room[node].items():
                if left > 1e-12 and other not in before:
                    before[other] = node
                    queue.append(other)
        if target not in before:
            return carried
        path = [target]
        while path[-1] != source:
            path.append(before[path[-1]])
        edges = list(zip(path[1:], path, strict=False))
        least = min(room[a][b] for a, b in edges)
        for a, b in edges:
            room[a][b] -= least
            room[b][a] += least
        carried += least
