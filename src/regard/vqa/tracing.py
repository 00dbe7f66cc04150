"""Where the information that the output attention reads came from: its weights, traced back through self-attention.

Legend: B batch, H heads, L cells, D width of a cell, d width of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.lazy import LazyWeights
from regard.nn import MultiheadAttention
from regard.vqa.mcan import MCAN, MixingLayer
from regard.vqa.output import Looked


class Traced(NamedTuple):
    """Shares (B, L) of the cells as they were before any self-attention, and the share (B,) that came from elsewhere.

    `shares` sum to what the effective weights of the output attention sum to; they may be negative. `moved` is half of
    the absolute difference from those weights: 0, the picture shows where the information was; 1, somewhere else.
    """

    shares: Tensor
    moved: Tensor


def traced_shares(
    shares: Tensor, weights: LazyWeights | Tensor, values: Tensor, projection: Tensor, before: Tensor, bias: Tensor
) -> Tensor:
    """Shares of the outputs of a self-attention as shares of its inputs (docs/math.md, 4.14): (B, L).

    The output of cell l is a sum of vectors: its own, that of the residual connection, and one from each cell that it
    attends to. The share of each in it is that of its component along the sum, so that shares of a cell sum to one.
    Exact for the attention, its projections and the residual connection, in memory that grows with L D.

    `shares`: of the outputs, (B, L).
    `weights`: (B, H, L, L), lazy or in memory.
    `values`: of the heads, (B, H, L, d).
    `projection`: of each head to the output, (H, d, D).
    `before`: what the residual connection adds, (B, L, D).
    `bias`: of the output, (D,); counted as the cell's own.

    >>> swap = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    >>> x = torch.tensor([[[1.0, 0.0], [0.0, 3.0]]])
    >>> no_residual, same = torch.zeros(1, 2, 2), torch.eye(2)[None]
    >>> traced_shares(torch.tensor([[1.0, 0.0]]), swap, x[:, None], same, no_residual, torch.zeros(2))
    tensor([[0., 1.]])
    """
    context = weights.times(values) if isinstance(weights, LazyWeights) else weights @ values
    home = before + bias
    after = home + torch.einsum("bhld,hde->ble", context.to(home.dtype), projection)
    size = after.square().sum(-1, keepdim=True)
    along = torch.where(size > 0, after / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0) * shares.unsqueeze(-1)
    asked = torch.einsum("ble,hde->bhdl", along, projection)
    received = weights.transposed_times(asked) if isinstance(weights, LazyWeights) else asked @ weights
    carried = (received.to(home.dtype) * values.mT).sum((1, 2))
    own = (along * home).sum(-1)
    nothing = torch.where(size.squeeze(-1) > 0, 0.0, shares)  # an output of zero has no direction: its share stays
    return own + carried + nothing


@torch.no_grad()
def trace(model: MCAN, looked: Looked, visited: list[MixingLayer], present: Tensor | None = None) -> Traced | None:
    """Trace the effective weights of an output attention back to the cells as they were before self-attention.

    None if a layer's self-attention is not the discrete one, whose weights are known. What else is in a layer, guided
    attention, norms and feed-forward, moves nothing from cell to cell; shares are passed through it as they are.

    `model`: whose output it is; with `reads` "own" nothing is mixed, and the weights are the shares.
    `looked`: what its output attention looked at.
    `visited`: the layers that mixed cells and their inputs, as a call with `visited=[]` fills it, without `rows`.
    `present`: the mask of the cells, (B, L); default None, all.
    """
    start = looked.effective.detach().to(model.head.weight.dtype)
    shares = start
    if model.settings.reads == "mixed":
        for layer, x in reversed(visited):
            attention = layer.self_attn
            if not isinstance(attention, MultiheadAttention):
                return None
            shares = _through(layer, attention, x, shares, present)
    return Traced(shares, (shares - start).abs().sum(-1) / 2)


def _through(
    layer: nn.Module, attention: MultiheadAttention, x: Tensor, shares: Tensor, present: Tensor | None
) -> Tensor:
    """Shares of what leaves the self-attention of a layer as shares of what enters it."""
    inner = layer.norm1(x) if layer.norm_first else x  # type: ignore[operator]
    q, k, v = attention.heads_of(inner)
    mask = None if present is None else present[:, None, None, :]
    affinity = attention.affinity() if isinstance(attention.affinity, nn.Module) else attention.affinity
    weights = LazyWeights(q, k, affinity, attention.map, mask)
    heads, width = v.shape[1], v.shape[-1]
    projection = attention.out_proj.weight.T.reshape(heads, width, -1)
    bias = attention.out_proj.bias
    return traced_shares(shares, weights, v, projection, x, torch.zeros_like(x[0, 0]) if bias is None else bias)
