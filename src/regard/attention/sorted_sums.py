"""Sums over the keys on one side of a split, for all queries at once, by one sort (docs/math.md, 4.3 to 4.5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def split_sum(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """y_i = sum of u_j over the j with a_i + b_j > 0: (..., Lq), (..., Lk), (..., Lk, e) -> (..., Lq, e).

    O((Lq + Lk) (e + log Lk)) time, linear memory. The gradient in `u` is the same sum with the roles of a and b
    exchanged, so it can be taken any number of times; the gradients in `a` and `b` are zero, as the sum is constant
    between the points where a split moves past a key.
    """
    out: Tensor = _SplitSum.apply(a.detach(), b.detach(), u)
    return out


class _SplitSum(Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
        lead = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1], u.shape[:-2])
        a, b = (x.expand(*lead, x.shape[-1]).reshape(-1, x.shape[-1]) for x in (a, b))
        u = u.expand(*lead, *u.shape[-2:]).reshape(-1, *u.shape[-2:])
        ordered, order = (-b).sort(-1)
        sums = _take_rows(u, order).cumsum(1)
        included = torch.searchsorted(ordered, a.contiguous())
        y = _take_rows(sums, (included - 1).clamp(min=0)).masked_fill_((included == 0).unsqueeze(-1), 0.0)
        return y.reshape(*lead, a.shape[-1], u.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, u = inputs
        ctx.save_for_backward(a, b)
        ctx.shape = u.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        a, b = ctx.saved_tensors
        return None, None, split_sum(b, a, grads[0]).sum_to_size(ctx.shape)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, int]:
        rank = max(x.dim() - (d is not None) - i for x, d, i in zip((a, b, u), in_dims, (0, 0, 1), strict=True))
        aligned = []
        for x, d, i in zip((a, b, u), in_dims, (0, 0, 1), strict=True):
            x = x.movedim(d, 0) if d is not None else x.unsqueeze(0)
            aligned.append(x.reshape(x.shape[0], *(1,) * (rank + i + 1 - x.dim()), *x.shape[1:]))
        return _SplitSum.apply(*aligned), 0


def _take_rows(u: Tensor, index: Tensor) -> Tensor:
    """Rows `index` (B, N) of u (B, L, e): (B, N, e), as one selection of whole rows."""
    start = torch.arange(u.shape[0], device=u.device).unsqueeze(1) * u.shape[1]
    return u.flatten(0, 1).index_select(0, (index + start).flatten()).reshape(*index.shape, u.shape[-1])
