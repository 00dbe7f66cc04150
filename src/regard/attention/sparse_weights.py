"""The weights of a sparse map as a sparse matrix: what is not zero, and nothing else, in memory."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from regard.affinity import Affinity, Dot
from regard.attention.arguments import Causal, Map
from regard.attention.lazy import LazyWeights
from regard.attention.place import Place
from regard.maps.entmax import sparsemax


def sparse_weights(
    q: Tensor,
    k: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = sparsemax,
    mask: Tensor | None = None,
    *,
    causal: Causal = False,
    bias: Tensor | None = None,
    sink: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights that are not zero, as a CSR tensor (docs/math.md, 4.7): (Lq, Lk), or (B Lq, Lk) for a batch of B.

    Arguments as in `attend`, without values; the default map is sparsemax. The rows of all leading dimensions come one
    after the other. Memory grows with the number of weights that are not zero: with softmax these are all of them. The
    result has no gradient.

    >>> q = torch.eye(3) * 4
    >>> p = sparse_weights(q, q)
    >>> p.crow_indices(), p.col_indices(), p.values()
    (tensor([0, 1, 2, 3]), tensor([0, 1, 2]), tensor([1., 1., 1.]))
    >>> p @ torch.arange(3.0)[:, None]
    tensor([[0.],
            [1.],
            [2.]])
    """
    with torch.no_grad():
        lazy = LazyWeights(q, k, affinity, map, mask, causal=causal, bias=bias, sink=sink, enable_gqa=enable_gqa)
        *batch, queries, keys = lazy.shape
        counts = torch.zeros(*batch, queries, dtype=torch.int64, device=lazy.device)
        # Blocks are ordered by part and by query, but rows of a block of all parts lie between those of others.
        first = torch.arange(counts.numel(), device=lazy.device).reshape(counts.shape)
        rows, columns, values = [], [], []
        for place, (row, column, value) in lazy.blocks(_nonzero):
            numbers = first[place.part][..., place.queries].flatten()
            rows.append(numbers[row])
            columns.append(column)
            values.append(value)
            counts[place.part][..., place.queries] = torch.bincount(row, minlength=len(numbers)).reshape(
                counts[place.part][..., place.queries].shape
            )
        start = torch.zeros(counts.numel() + 1, dtype=torch.int64, device=lazy.device)
        start[1:] = counts.flatten().cumsum(0)
        empty = torch.zeros(0, dtype=torch.int64, device=lazy.device)
        order = torch.cat([empty, *rows]).argsort(stable=True)
        column = torch.cat([empty, *columns])[order]
        value = torch.cat([torch.zeros(0, dtype=lazy.dtype, device=lazy.device), *values])[order]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
            return torch.sparse_csr_tensor(start, column, value, (counts.numel(), keys), check_invariants=True)


def _nonzero(p: Tensor, place: Place) -> tuple[Tensor, ...]:
    """Rows of a block, columns and values of what is not zero, row by row."""
    flat = p.flatten(0, -2)
    row, column = flat.nonzero(as_tuple=True)
    return row, column, flat[row, column]
