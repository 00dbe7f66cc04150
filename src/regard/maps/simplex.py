"""Maps onto the simplex: argmax over distributions p of <s, p> - Omega(p), with closed-form gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from regard import _check
from regard._torch import exporting, transforming
from regard.maps._exported import entmax_exported
from regard.maps._rows import one_per_row, scores_in_float32
from regard.maps._threshold import entmax_rows, pullback_rows


def softmax(s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Distribution that maximises <s, p> plus its Shannon entropy (docs/math.md, 2.2).

    `s` has any shape; `mask` is boolean, True where an entry takes part, and broadcasts to `s`. Returns the shape and
    dtype of `s`, each slice along `dim` summing to one. Differentiable any number of times.

    An entry with score -inf counts as masked. A slice with every entry masked is zero, and so is its gradient. NaN and
    +inf raise ValueError (see `checks`).

    >>> softmax(torch.tensor([1.0, 1.0, 3.0]), mask=torch.tensor([True, True, False]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    s, dim, dtype = scores_in_float32(s, dim, mask)
    _check.scores(s)
    if _check.values_checked(s) and not bool(s.detach().narrow(dim, 0, 1).isneginf().any()):
        return torch.softmax(s, dim).to(dtype)  # no row is masked whole if none is at its first entry
    dead = s.detach().isneginf().all(dim, keepdim=True)
    return torch.softmax(s.masked_fill(dead, 0.0), dim).masked_fill(dead, 0.0).to(dtype)


def sparsemax(s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Euclidean projection onto the simplex: argmax of <s, p> - |p|^2 / 2, often with exact zeros (docs/math.md, 2.3).

    Shapes, masks and errors as in `softmax`. The gradient is closed form (2.11), and differentiable again.

    >>> sparsemax(torch.tensor([1.0, 1.4, 0.1]))
    tensor([0.3000, 0.7000, 0.0000])
    """
    return entmax(s, 2.0, dim, mask)


def entmax(s: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Distribution that maximises <s, p> plus its Tsallis entropy of order `alpha` (docs/math.md, 2.4).

    `alpha` is a number > 0 (1 is softmax, 2 is sparsemax) or a tensor that broadcasts against `s` with size 1 along
    `dim`, so that each slice may have its own; it can be learned. Above one weights are sparse; below one they are
    dense, with tails longer than softmax's, near s^(-1 / (1 - alpha)); at zero and below there is no entropy (2.4).
    Shapes, masks and errors as in `softmax`. The gradients in `s` (2.11) and in `alpha` (2.12) are closed form, exact
    at and around alpha = 1, and differentiable again.

    >>> s = torch.tensor([1.0, 0.0, -1.0])
    >>> entmax(s, 1.5)
    tensor([0.8307, 0.1693, 0.0000])
    >>> alpha = torch.tensor([[1.0], [1.5], [2.0]], requires_grad=True)
    >>> entmax(s.expand(3, 3), alpha)
    tensor([[0.6652, 0.2447, 0.0900],
            [0.8307, 0.1693, 0.0000],
            [1.0000, 0.0000, 0.0000]], grad_fn=<_EntmaxBackward>)
    """
    if not isinstance(alpha, Tensor):
        alpha = _check.number("alpha", alpha, above=0, remedy="1 is softmax, 2 is sparsemax, larger is sparser.")
        if alpha == 1:
            return softmax(s, dim, mask)
    s, dim, dtype = scores_in_float32(s, dim, mask)
    if isinstance(alpha, Tensor):
        alpha = one_per_row("alpha", alpha, s, dim)
    if exporting() and (torch.onnx.is_in_onnx_export() or (isinstance(alpha, float) and alpha <= 2)):
        # A graph of torch's own operations runs without regard; ONNX knows no others.
        p = entmax_exported(s, alpha, dim)
    elif torch.compiler.is_compiling():
        # Dynamo refuses a Function with a jvp, and cannot trace a loop that ends when it has converged.
        alphas, number = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
        p = _entmax_op(s.contiguous(), alphas, number, dim)
    else:
        p = (_Transformed if transforming() else _Entmax).apply(s, alpha, dim)
    return p.to(dtype)


def mean(s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Scores divided by the number of entries that take part (docs/math.md, 2.6), as in non-local blocks.

    Not a distribution: nothing forces the result to be positive or to sum to one. Shapes, masks and errors as in
    `softmax`.

    >>> mean(torch.tensor([3.0, -1.0, 5.0]), mask=torch.tensor([True, True, False]))
    tensor([ 1.5000, -0.5000,  0.0000])
    """
    s, dim, dtype = scores_in_float32(s, dim, mask)
    _check.scores(s)
    part = s != -math.inf
    total = part.sum(dim, keepdim=True).clamp(min=1)
    return (s.masked_fill(~part, 0.0) / total).to(dtype)


class _Transformed(Function):
    """p and its closed-form derivatives, for reverse and forward mode, any number of times, under vmap."""

    @staticmethod
    def forward(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
        return entmax_rows(s, alpha, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha, dim = inputs
        tensors = (output, alpha) if isinstance(alpha, Tensor) else (output,)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.number = None if isinstance(alpha, Tensor) else alpha
        ctx.dim = dim

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, *alphas = ctx.saved_tensors
        grad_s, grad_alpha = _pullback(p, alphas[0] if alphas else ctx.number, ctx.dim, grads[0])
        return grad_s, grad_alpha, None

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Any) -> Tensor:
        dim: int = ctx.dim  # type: ignore[attr-defined]
        p, *alphas = ctx.saved_tensors  # type: ignore[attr-defined]
        alpha = alphas[0] if alphas else ctx.number  # type: ignore[attr-defined]
        w, total = _slopes(p, alpha, dim)
        change = torch.zeros_like(p)
        if tangents[0] is not None:
            change = w * (tangents[0] - (w * tangents[0]).sum(dim, keepdim=True) / total)
        if alphas and tangents[1] is not None:
            bend = _bend(p, w, alpha)
            change = change + (bend - w * bend.sum(dim, keepdim=True) / total) * tangents[1]
        return change

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], s: Tensor, alpha: float | Tensor, dim: int
    ) -> tuple[Tensor, int]:
        s = s.movedim(in_dims[0], 0) if in_dims[0] is not None else s.expand(info.batch_size, *s.shape)
        if isinstance(alpha, Tensor):
            alpha = alpha.movedim(in_dims[1], 0) if in_dims[1] is not None else alpha.unsqueeze(0)
        return _Transformed.apply(s, alpha, dim), 0


class _Entmax(_Transformed):
    """The same outside of transforms. Torch binds the arguments of a separate `setup_context` by name at every call,
    which takes as long as some hundred short rows."""

    setup_context = Function.setup_context

    @staticmethod
    def forward(ctx: Any, s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:  # type: ignore[override]
        p = entmax_rows(s, alpha, dim)
        _Transformed.setup_context(ctx, (s, alpha, dim), p)
        return p


def _slopes(p: Tensor, alpha: float | Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """w = p^(2 - alpha) on the support, zero elsewhere, and its sum, never zero. Both may be differentiated."""
    support = p > 0
    if isinstance(alpha, float) and alpha == 2:
        w = support.to(p.dtype)
    else:
        w = torch.where(support, torch.where(support, p, 1.0) ** (2 - alpha), 0.0)
    return w, w.sum(dim, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)


def _bend(p: Tensor, w: Tensor, alpha: Tensor) -> Tensor:
    """d/dalpha of e_alpha(y) at fixed y, from p = e_alpha(y): (p - w - delta p ln p) / delta^2, stable near one."""
    support = p > 0
    log = torch.where(support, torch.where(support, p, 1.0).log(), 0.0)
    delta = alpha - 1
    x = -delta * log
    near = x.abs() < 0.5
    small = torch.where(near, x, 0.0)
    series = torch.zeros_like(x)
    for k in range(12, -1, -1):
        series = series * small + 1 / math.factorial(k + 2)
    far = (w - p - p * x) / torch.where(near, 1.0, delta) ** 2
    return -torch.where(near, p * log.square() * series, far)


def _pullback(p: Tensor, alpha: float | Tensor, dim: int, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    plain = isinstance(alpha, float) and not torch.is_grad_enabled() and _check.readable(grad)
    if plain and isinstance(alpha, float) and (found := pullback_rows(p, grad, alpha, dim)) is not None:
        return found, None
    if plain and alpha in (1.5, 2.0):
        # As below, in half the memory, because fresh memory costs more than arithmetic.
        tiny = torch.finfo(p.dtype).tiny
        if alpha == 1.5:
            w = p.clamp(min=tiny).rsqrt_().mul_(p)  # the square root: of zeros it takes 20 times as long
        else:
            w = torch.gt(p, 0, out=torch.empty_like(p))
        total = w.sum(dim, keepdim=True).clamp_(min=tiny)
        centre = torch.linalg.vecdot(w, grad, dim=dim).unsqueeze(dim) / total
        return (grad - centre).mul_(w), None
    w, total = _slopes(p, alpha, dim)
    centred = grad - (w * grad).sum(dim, keepdim=True) / total
    if not isinstance(alpha, Tensor):
        return w * centred, None
    grad_alpha = (_bend(p, w, alpha) * centred).sum_to_size(alpha.shape)
    return w * centred, grad_alpha


@torch.library.custom_op("regard::entmax", mutates_args=())
def _entmax_op(s: Tensor, alphas: Tensor | None, number: float, dim: int) -> Tensor:
    return entmax_rows(s, number if alphas is None else alphas, dim)


@_entmax_op.register_fake
def _(s: Tensor, alphas: Tensor | None, number: float, dim: int) -> Tensor:
    return torch.empty_like(s, memory_format=torch.contiguous_format)


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, alphas, ctx.number, ctx.dim = inputs
    ctx.save_for_backward(*((output,) if alphas is None else (output, alphas)))


def _op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    p, *alphas = ctx.saved_tensors
    grad_s, grad_alpha = _pullback(p, alphas[0] if alphas else ctx.number, ctx.dim, grad)
    return grad_s, grad_alpha, None, None


_entmax_op.register_autograd(_op_backward, setup_context=_op_setup)
