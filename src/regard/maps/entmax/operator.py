"""Entmax as an operator of torch, `regard::entmax`, for the graphs of torch.compile and torch.export.

Dynamo does not support a Function with a jvp, and cannot trace a loop that ends at convergence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.maps.entmax.derivative import pullback
from regard.maps.entmax.threshold import entmax_rows


@torch.library.custom_op("regard::entmax", mutates_args=())
def entmax_operator(s: Tensor, alphas: Tensor | None, number: float, dim: int) -> Tensor:
    """Entmax of float32 or float64 scores.

    `s`: the scores.
    `alphas`: a tensor of alphas, or None.
    `number`: the alpha where `alphas` is None.
    `dim`: the axis.
    """
    return entmax_rows(s, number if alphas is None else alphas, dim)


@entmax_operator.register_fake
def _(s: Tensor, alphas: Tensor | None, number: float, dim: int) -> Tensor:
    return torch.empty_like(s, memory_format=torch.contiguous_format)


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, alphas, ctx.number, ctx.dim = inputs
    ctx.save_for_backward(*((output,) if alphas is None else (output, alphas)))


def _op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    p, *alphas = ctx.saved_tensors
    grad_s, grad_alpha = pullback(p, alphas[0] if alphas else ctx.number, ctx.dim, grad)
    return grad_s, grad_alpha, None, None


entmax_operator.register_autograd(_op_backward, setup_context=_op_setup)
