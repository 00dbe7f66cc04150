"""Attention across layers: rollout, without a matrix of all pairs of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import _check
from regard.attention.lazy import LazyWeights, places_of


def rollout(layers: Sequence[LazyWeights | Tensor], rows: Sequence[int] | Tensor, *, residual: float = 0.5) -> Tensor:
    """The share of each input token in some output tokens, through all layers (docs/math.md, 4.13): (..., R, L).

    `layers`: the weights of each layer, from the first to the last, (..., H, L, L), lazy or in memory; heads are
    averaged.
    `rows`: the R places of the output tokens; -1 is the last.
    `residual`: the share of a token that comes along the residual connection of each layer; default one half.

    A row of R L numbers goes through the layers from the last to the first, in blocks of queries, so that memory
    grows with R L. Differentiable in all tensors of the layers. Rollout takes each layer for an average of its inputs,
    which it is not: values, projections and the feed-forward part do not enter.

    >>> x = torch.zeros(1, 2, 4)
    >>> rollout([LazyWeights(x, x), LazyWeights(x, x)], [0])
    tensor([[0.6250, 0.3750]])
    """
    _check.share("residual", residual)
    if not layers:
        _check.complain("layers", "none", "at least one", "Keep them: regard.hf.watch(model, keep=True).")
    tokens = layers[0].shape[-1]
    for i, layer in enumerate(layers):
        if len(layer.shape) < 3 or layer.shape[-2:] != (tokens, tokens):
            expected = f"(..., H, {tokens}, {tokens}): heads, and as many queries as keys in every layer"
            remedy = "Layers that merge tokens, windows and cross-attention have no rollout."
            _check.complain(f"layers[{i}]", f"weights {tuple(layer.shape)}", expected, remedy)
        if isinstance(layer, Tensor):
            _check.nonnegative(f"layers[{i}]", layer)
    places = places_of(rows, tokens).to(layers[0].device)
    chosen = torch.zeros(len(places), tokens, dtype=layers[0].dtype, device=layers[0].device)
    chosen[torch.arange(len(places)), places] = 1.0
    batch = torch.broadcast_shapes(*(layer.shape[:-3] for layer in layers))
    shares = chosen.expand(*batch, *chosen.shape)
    for layer in reversed(layers):
        by_head = shares.to(layer.dtype).unsqueeze(-3)
        attended = (by_head @ layer if isinstance(layer, Tensor) else layer.transposed_times(by_head)).mean(-3)
        shares = residual * shares + (1 - residual) * attended
    return shares
