"""Attention on nested tensors (sequences of different lengths), computed on padded tensors with a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nested

from regard import _check

Attention = Callable[..., tuple[Tensor, Tensor | None]]


def in_nested(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, masked: bool, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Output nested like `query`, and weights padded with zeros.

    `attention`: an attention on (B, L, d) that takes a `key_padding_mask`.
    `query`, `key`, `value`: nested tensors (B, L, d).
    `masked`: whether the caller passed a mask, which is an error: a nested tensor has no shape for it.
    `options`: keyword arguments for `attention`.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not x.is_nested or x.dim() != 3:
            got = f"{x.dim()} axes, {'nested' if x.is_nested else 'not nested'}"
            remedy = "Pad it with torch.nested.to_padded_tensor, and mask what is padded."
            _check.complain(name, got, "three axes, and all of query, key and value nested", remedy)
    if masked:
        remedy = "Pad the inputs with torch.nested.to_padded_tensor; then masks have a shape."
        _check.complain("attn_mask, key_padding_mask", "a mask beside nested tensors", "None", remedy)
    lengths = {name: _lengths(x) for name, x in (("query", query), ("key", key), ("value", value))}
    if lengths["key"].tolist() != lengths["value"].tolist() or len(lengths["query"]) != len(lengths["key"]):
        got = ", ".join(f"{name} of lengths {length.tolist()}" for name, length in lengths.items())
        _check.complain("query, key, value", got, "one batch, and a value for each key", "Nest them alike.")
    padded = nested.to_padded_tensor(query, 0.0)
    keys = padded if key is query else nested.to_padded_tensor(key, 0.0)
    values = keys if value is key else nested.to_padded_tensor(value, 0.0)
    out, weights = attention(padded, keys, values, key_padding_mask=~_within(lengths["key"], keys), **options)
    within = _within(lengths["query"], padded)
    if weights is not None:
        rows_within = within.unsqueeze(-1) if weights.dim() == 3 else within[:, None, :, None]
        weights = weights.masked_fill(~rows_within, 0.0)
    if query.layout == torch.jagged:  # with the offsets of the query: torch adds only nested tensors that share them
        return nested.nested_tensor_from_jagged(out[within], cast(Any, query).offsets()), weights
    rows = [row[:length] for row, length in zip(out, lengths["query"].tolist(), strict=True)]
    return nested.as_nested_tensor(rows), weights


def _lengths(x: Tensor) -> Tensor:
    """The length of each sequence (B,)."""
    return torch.tensor([len(row) for row in x.unbind()], device=x.device)


def _within(lengths: Tensor, padded: Tensor) -> Tensor:
    """True where there is a token, (B, L)."""
    return torch.arange(padded.shape[1], device=padded.device) < lengths.unsqueeze(-1)
