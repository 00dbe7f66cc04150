"""Fenchel-Young losses: for each map the loss that belongs to it, as cross entropy belongs to softmax."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from regard import _check
from regard.maps.simplex import entmax

Reduction = Literal["mean", "sum", "none"]


def sparsemax_loss(
    s: Tensor,
    target: Tensor,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Fenchel-Young loss of sparsemax (docs/math.md, 3.1): zero as soon as the target leads by one.

    `entmax_loss` with alpha = 2; see there, for shapes too.

    >>> sparsemax_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """
    return entmax_loss(s, target, 2.0, dim, mask, reduction=reduction, ignore_index=ignore_index)


def entmax_loss(
    s: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Fenchel-Young loss of entmax, Omega*(s) + Omega(y) - <s, y> (docs/math.md, 3.1); alpha = 1 is cross entropy.

    `s` has classes along `dim`. `target` holds class numbers, in the shape of `s` without `dim`, or distributions, in
    the shape of `s`. Class numbers equal to `ignore_index` count nowhere; if all are ignored the mean is zero.
    `mask` is boolean, True where a class takes part.

    Never negative, and zero where entmax(s) = y. The gradient in `s` is entmax(s) - y, exactly, and is differentiable
    again; in a distribution `target` that asks for it, the gradient is that of Omega(y) - <s, y>.

    >>> s = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    >>> entmax_loss(s, torch.tensor([1])).backward()
    >>> s.grad
    tensor([[ 0.8307, -0.8307,  0.0000]])
    """
    _check.floating("s", s, min_dims=1)
    alpha = _check.number("alpha", alpha, at_least=1, remedy="1 is cross entropy, 2 the loss of sparsemax.")
    if reduction not in ("mean", "sum", "none"):
        _check.complain("reduction", repr(reduction), "'mean', 'sum' or 'none'", "Choose one of these.")
    dim = _check.axis("s", s, dim)
    dtype = s.dtype
    if dtype in (torch.float16, torch.bfloat16):
        s = s.float()
    p = entmax(s, alpha, dim, mask)
    y, counts = _as_distribution(target, s, dim, ignore_index)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    linear = _Linear.apply(s, p, y).sum(dim)
    loss: Tensor = linear - _omega(p.detach(), alpha).sum(dim) + _omega(y, alpha).sum(dim)
    if counts is not None:
        loss = loss.where(counts, 0.0)
    loss = loss.to(dtype)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    total = counts.sum().clamp(min=1) if counts is not None else max(1, loss.numel())
    return loss.sum() / total


def _as_distribution(target: Tensor, s: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """The target as distributions in the shape of s, and, for class numbers, which of them count."""
    if not isinstance(target, Tensor):
        _check.complain("target", type(target).__name__, "a tensor", "Convert it with torch.as_tensor.", TypeError)
    classes = s.shape[dim]
    if target.dtype.is_floating_point:
        if target.shape != s.shape:
            shape = f"shape {tuple(target.shape)}"
            _check.complain("target", shape, f"the shape of s, {tuple(s.shape)}", "Pass one distribution per row.")
        if _check.values_checked(target) and not bool(
            (target >= 0).all() & ((target.float().sum(dim) - 1).abs() <= 1e-2).all()
        ):
            _check.complain("target", "rows that are no distributions", "rows >= 0 that sum to one", "Normalise them.")
        return target.to(s.dtype), None
    rows = s.shape[: s.dim() + dim] + s.shape[s.dim() + dim + 1 :]
    if target.dtype == torch.bool or target.shape != rows:
        got = f"{target.dtype} of shape {tuple(target.shape)}"
        _check.complain("target", got, f"class numbers of shape {tuple(rows)}", "That is s without its dim.")
    counts = target != ignore_index
    if _check.values_checked(target) and not bool(((target >= 0) & (target < classes) | ~counts).all()):
        got = f"class numbers from {int(target.min())} to {int(target.max())}"
        _check.complain("target", got, f"0 to {classes - 1}, or ignore_index", "Check the number of classes.")
    index = target.where(counts, 0).long().unsqueeze(dim)
    return torch.zeros_like(s, requires_grad=False).scatter(dim, index, 1.0), counts


def _omega(p: Tensor, alpha: float) -> Tensor:
    """Negative Tsallis entropy, term by term: (p^alpha - p) / (alpha (alpha - 1)), p ln p at alpha = 1."""
    if alpha == 1:
        return torch.where(p > 0, p * torch.where(p > 0, p, 1.0).log(), 0.0)
    return (p**alpha - p) / (alpha * (alpha - 1))


class _Linear(Function):
    """<s, p - y> term by term, with p - y as its derivative in s: what p does is accounted for by duality."""

    @staticmethod
    def forward(s: Tensor, p: Tensor, y: Tensor) -> Tensor:
        # A class that takes no part has score -inf and weight zero, and adds nothing.
        return torch.where(p == y, 0.0, s * (p - y))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor]:
        s, p, y = ctx.saved_tensors
        return grads[0] * (p - y), None, -grads[0] * s

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        s, p, y = (x.movedim(d, 0) if d is not None else x.unsqueeze(0) for x, d in zip(inputs, in_dims, strict=True))
        return _Linear.apply(s, p, y), 0
