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
    tokens = check_layers(layers, residual)
    shares = chosen_rows(places_of(rows, tokens), layers[0])
    shares = shares.expand(*torch.broadcast_shapes(*(layer.shape[:-3] for layer in layers)), *shares.shape)
    for layer in reversed(layers):
        shares = step_down(layer, shares, residual)
    return shares


def step_down(layer: LazyWeights | Tensor, shares: Tensor, residual: float) -> Tensor:
    """Coefficients of the tokens above a layer, (..., R, L), as those of the tokens below it."""
    by_head = shares.to(layer.dtype).unsqueeze(-3)
    attended = (by_head @ layer if isinstance(layer, Tensor) else layer.transposed_times(by_head)).mean(-3)
    return residual * shares + (1 - residual) * attended


def chosen_rows(places: Tensor, layer: LazyWeights | Tensor) -> Tensor:
    """Rows of the identity: (R, L), for R tokens of a layer."""
    rows = torch.zeros(len(places), layer.shape[-1], dtype=layer.dtype, device=layer.device)
    rows[torch.arange(len(places)), places.to(layer.device)] = 1.0
    return rows


def check_layers(layers: Sequence[LazyWeights | Tensor], residual: float) -> int:
    """The number of tokens; an error if the layers do not have as many queries as keys, all the same number."""
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
    return tokens
