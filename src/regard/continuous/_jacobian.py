"""An expectation whose derivatives are known in closed form, as one step of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from regard.continuous._small import matrices

Jacobians = tuple[Tensor, Tensor, Tensor]
Compute = Callable[[Tensor, Tensor], Jacobians]


def with_jacobian(compute: Compute, mean: Tensor, covariance: Tensor) -> Tensor:
    """r = compute(mean, covariance)[0], differentiated with the Jacobians that `compute` returns beside it.

    `mean` (..., d), `covariance` (..., d, d); `compute` returns r (..., N), dr/dmean (..., N, d) and dr/dcovariance
    (..., N, d, d). Differentiable once: a second derivative raises instead of being silently wrong.
    """
    result: Tensor = _Expectation.apply(mean, covariance, compute)[0]
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
        ctx.save_for_backward(*inputs[:2], by_mean, by_covariance)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None, None]:
        if grad is None:
            return None, None, None
        by_mean, by_covariance = _Contraction.apply(grad, *ctx.saved_tensors)
        return by_mean, by_covariance, None


class _Contraction(torch.autograd.Function):
    """The vector-Jacobian product. It takes mean and covariance only to know when somebody differentiates it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, mean: Tensor, covariance: Tensor, by_mean: Tensor, by_covariance: Tensor) -> Any:
        d = by_mean.shape[-1]
        # One product for both: (..., 1, N) @ (..., N, d + d d).
        out = (grad.unsqueeze(-2) @ torch.cat([by_mean, by_covariance.flatten(-2)], -1)).squeeze(-2)
        return out[..., :d].clone(), matrices(out[..., d:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        raise RuntimeError(
            "an expectation by chord quadrature was differentiated twice, which is not available. "
            "Use a FourierBasis: its expectations can be differentiated as often as you like."
        )
