"""Masks and biases that broadcast to all pairs of a query and a key."""

from __future__ import annotations

import torch
from torch import Tensor


def same_for_all_queries(x: Tensor | None) -> bool:
    """Whether a mask or a bias is the same for every query."""
    return x is None or x.dim() < 2 or x.shape[-2] == 1


def same_for_all_heads(x: Tensor | None) -> bool:
    """Whether a mask or a bias is the same for every head."""
    return x is None or x.dim() < 3 or x.shape[-3] == 1


def with_causal(
    mask: Tensor | None, diagonal: int | None, queries: int, keys: int, device: torch.device
) -> Tensor | None:
    """The mask and a causal mask together.

    `mask`: boolean, or None.
    `diagonal`: query i sees the keys up to i + diagonal; None for all.
    `queries`, `keys`: their numbers.
    `device`: of the mask.

    >>> with_causal(None, 0, 2, 3, torch.device("cpu"))
    tensor([[ True, False, False],
            [ True,  True, False]])
    """
    if diagonal is None:
        return mask
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(diagonal)
    return allowed if mask is None else mask & allowed


def key_column(mask: Tensor, keys: int) -> Tensor:
    """A mask that broadcasts to (..., 1, Lk) as a column (..., Lk, 1)."""
    mask = mask[(None,) * max(0, 2 - mask.dim())].mT
    return mask.expand(*mask.shape[:-2], keys, 1)
