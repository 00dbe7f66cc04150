"""A guard for gradients that hold something fixed: right once, and wrong if they were differentiated again."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor
from torch.autograd import Function


def once(x: Tensor, what: str) -> Tensor:
    """x, with a second derivative that raises and says `what` cannot be differentiated twice.

    `torch.autograd.function.once_differentiable` is not enough: `torch.autograd.grad` leaves its error out of the graph
    as soon as there is another way from the result to x.
    """
    same: Tensor = _Once.apply(x, what)
    return same


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
    """The gradient. It takes x only to know when somebody differentiates it."""

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
