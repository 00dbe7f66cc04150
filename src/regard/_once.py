"""A guard for gradients that treat a quantity as constant: right themselves, but wrong if differentiated again."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor
from torch.autograd import Function


def once(x: Tensor, what: str) -> Tensor:
    """x, with a second derivative that raises; `what` names the operation in the error.

    `torch.autograd.function.once_differentiable` is not enough: `torch.autograd.grad` drops its error from the
    graph as soon as there is another path from the result to x.
    """
    guarded: Tensor = _Once.apply(x, what)
    return guarded


class _Once(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, what: str) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
        x, ctx.what = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Stop.apply(grads[0], *ctx.saved_tensors, ctx.what), None


class _Stop(Function):
    """The identity on the gradient; x is an input so that autograd calls `backward` on a second derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, what: str) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
        ctx.what = inputs[2]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        raise RuntimeError(
            f"{ctx.what} was differentiated twice, which is not available: its gradient holds something fixed."
        )
