"""Attention flow across layers: bounds of the maximum flow between tokens, without a matrix of all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import query_blocks
from regard.attention.lazy import LazyWeights, places_of
from regard.attention.rollout import check_layers, chosen_rows, step_down


class FlowBounds(NamedTuple):
    """The maximum flow is at least `low` and at most `high` (docs/math.md, 4.15, 4.16): (..., R, K) each.

    >>> FlowBounds(torch.zeros(1, 1), torch.ones(1, 1)).high
    tensor([[1.]])
    """

    low: Tensor
    high: Tensor


def flow(
    layers: Sequence[LazyWeights | Tensor],
    rows: Sequence[int] | Tensor,
    sinks: Sequence[int] | Tensor,
    *,
    residual: float = 0.5,
) -> FlowBounds:
    """Bounds of the maximum flow from output tokens to input tokens, through all layers (docs/math.md, 4.15, 4.16).

    `layers`: the weights of each layer, from the first to the last, (..., H, L, L), lazy or in memory; heads are
    averaged.
    `rows`: the R places of the output tokens; -1 is the last.
    `sinks`: the K places of the input tokens.
    `residual`: the share of a token that comes along the residual connection of each layer; default one half.

    The capacity of an edge between two layers is the mean weight, mixed with the residual connection. The maximum flow
    itself lives on all edges, N^2 of them in each layer; these bounds need K + R numbers for each token. `high` is the
    flow itself for one and two layers, `low` for one. Between them lies the truth; `low` is at least the rollout. Time
    grows with K N^2 for each layer. There is no gradient.

    >>> x = torch.zeros(1, 3, 4)
    >>> flow([LazyWeights(x, x), LazyWeights(x, x)], [0], [0, 2])
    FlowBounds(low=tensor([[0.7500, 0.3750]]), high=tensor([[1.0000, 0.5000]]))
    """
    tokens = check_layers(layers, residual)
    with torch.no_grad():
        outputs, inputs = (places_of(places, tokens).to(layers[0].device) for places in (rows, sinks))
        batch = torch.broadcast_shapes(*(layer.shape[:-3] for layer in layers))
        reach = chosen_rows(inputs, layers[0]).expand(*batch, len(inputs), tokens)
        high, reaches = torch.where(reach > 0, torch.inf, reach), []  # a sink takes all
        everything = torch.arange(tokens, device=reach.device)
        for number, layer in enumerate(layers):
            reaches.append(reach.amax(-1))
            last = number == len(layers) - 1
            high, reach = _up(layer, outputs if last else everything, high, reach, residual)
        shares = chosen_rows(outputs, layers[0]).expand(*batch, len(outputs), tokens)
        fullest = reach.new_zeros(*batch, len(outputs), len(inputs))
        for layer, furthest in zip(reversed(layers), reversed(reaches), strict=True):
            fullest = torch.maximum(fullest, shares.amax(-1).unsqueeze(-1) * furthest.unsqueeze(-2))
            shares = step_down(layer, shares, residual)
        carried = shares[..., inputs]
        low = torch.where(carried > 0, carried / fullest.clamp_min(torch.finfo(carried.dtype).tiny), 0.0)
        entering = step_down(layers[0], torch.ones_like(shares[..., :1, :]), residual)[..., inputs]  # a cut
        high = torch.minimum(high.mT, entering)
        return FlowBounds(torch.minimum(low, high), high)


def _up(
    layer: LazyWeights | Tensor, rows: Tensor, high: Tensor, reach: Tensor, residual: float
) -> tuple[Tensor, Tensor]:
    """From the tokens below a layer to some tokens above it, (..., K, rows).

    `high`: at most so much flows from each token to each sink, (..., K, L).
    `reach`: the share of each token that a random walk brings to each sink, (..., K, L).
    """
    size = max(1, query_blocks.BUDGET // max(1, layer.shape[:-2].numel() * layer.shape[-1]))
    highs, reaches = [], []
    for some in rows.split(size):
        p = layer[..., some, :] if isinstance(layer, Tensor) else layer.rows(some)
        capacity = (1 - residual) * p.mean(-3)
        capacity[..., torch.arange(len(some)), some] += residual
        sums = [torch.minimum(capacity, high[..., k, None, :]).sum(-1) for k in range(high.shape[-2])]
        highs.append(torch.stack(sums, -2) if sums else high[..., :, : len(some)])
        reaches.append(reach @ capacity.mT)
    return torch.cat(highs, -1), torch.cat(reaches, -1)
