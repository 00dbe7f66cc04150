"""An expectation whose derivatives are known in closed form, as one autograd function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard._once import once
from regard.continuous._small import matrices

Jacobians = tuple[Tensor, Tensor, Tensor]
Compute = Callable[[Tensor, Tensor], Jacobians]


def with_jacobian(compute: Compute, mean: Tensor, covariance: Tensor) -> Tensor:
    """r = compute(mean, covariance)[0], differentiated with the Jacobians that `compute` returns beside it.

    `mean` (..., d), `covariance` (..., d, d); `compute` returns r (..., N), dr/dmean (..., N, d) and dr/dcovariance
    (..., N, d, d). Differentiable once: a second derivative raises instead of being silently wrong.
    """
    operation = "an expectation by chord quadrature (unlike one of a FourierBasis)"
    result: Tensor = _Expectation.apply(once(mean, operation), once(covariance, operation), compute)[0]
    return result


class _Expectation(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, covariance: Tensor, compute: Compute) -> Jacobians:
        return compute(mean, covariance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Compute], output: Jacobians) -> None:
        _, by_mean, by_covariance = output
        ctx.mark_non_differentiable(by_mean, by_covariance)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(by_mean, by_covariance)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None, None]:
        if grad is None:
            return None, None, None
        by_mean, by_covariance = ctx.saved_tensors
        d = by_mean.shape[-1]
        # One product for both: (..., 1, N) @ (..., N, d + d d).
        out = (grad.unsqueeze(-2) @ torch.cat([by_mean, by_covariance.flatten(-2)], -1)).squeeze(-2)
        return out[..., :d], matrices(out[..., d:]), None
