"""Fenchel-Young losses of scores: for each map its loss, as cross entropy is that of softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd import Function

from regard import _check
from regard.maps.entmax import entmax
from regard.maps.normmax import normmax

# "elementwise_mean" is the entmax package's name for "mean".
Reduction = Literal["mean", "elementwise_mean", "sum", "none"]
REDUCTIONS = get_args(Reduction)


def sparsemax_loss(
    s: Tensor,
    target: Tensor,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Fenchel-Young loss of sparsemax (docs/math.md, 3.1): zero once the target leads all other scores by one.

    `entmax_loss` with alpha = 2: arguments, shapes and gradients as there.

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

    `s`: scores, with classes along `dim`.
    `target`: class indices, in the shape of `s` without `dim`, or distributions, in the shape of `s`.
    `alpha`: a number > 0, as for `entmax`; default 1.5.
    `dim`: the axis of the classes; default the last.
    `mask`: boolean, True where a class takes part; default None, all do.
    `reduction`: "mean" (default; also "elementwise_mean", the entmax package's name), "sum", or "none", a loss per row.
    `ignore_index`: rows with this class index are left out; if all are, the mean is zero; default -100.

    Never negative, and zero where entmax(s) = y. The gradient in `s` is entmax(s) - y, exactly, and is differentiable
    again; in a distribution `target` that requires a gradient, it is that of Omega(y) - <s, y>.

    >>> s = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    >>> entmax_loss(s, torch.tensor([1])).backward()
    >>> s.grad
    tensor([[ 0.8307, -0.8307,  0.0000]])
    """
    alpha = _check.number("alpha", alpha, above=0, remedy="1 is cross entropy, 2 the loss of sparsemax.")
    return _fenchel_young(
        s,
        target,
        partial(entmax, alpha=alpha),
        partial(negative_tsallis, alpha=alpha),
        dim,
        mask,
        reduction,
        ignore_index,
    )


def normmax_loss(
    s: Tensor,
    target: Tensor,
    alpha: float = 2.0,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Fenchel-Young loss of normmax (docs/math.md, 2.17 and 3.1), with the alpha-norm as Omega.

    Arguments, shapes and gradients as in `entmax_loss`: the gradient in `s` is normmax(s) - y.

    >>> s = torch.tensor([[1.0, 0.0, -1.0], [3.0, 0.0, -1.0]])
    >>> normmax_loss(s, torch.tensor([1, 0]), reduction="none")
    tensor([1., 0.])
    """
    alpha = _check.number("alpha", alpha, above=1, remedy="At 1 all weight goes to the largest score.")
    return _fenchel_young(
        s, target, partial(normmax, alpha=alpha), partial(_norm, alpha=alpha), dim, mask, reduction, ignore_index
    )


def _fenchel_young(
    s: Tensor,
    target: Tensor,
    map: Callable[..., Tensor],
    omega: Callable[[Tensor, int], Tensor],
    dim: int,
    mask: Tensor | None,
    reduction: Reduction,
    ignore_index: int,
) -> Tensor:
    """Omega*(s) + Omega(y) - <s, y> per row (3.1), reduced.

    `map`: from scores to weights; takes `dim` and `mask`.
    `omega`: the regulariser of the map, from distributions and the axis of the classes to one number per row.
    The others: as in `entmax_loss`.
    """
    _check.floating("s", s, min_dims=1)
    check_reduction(reduction)
    dim = _check.axis("s", s, dim)
    dtype = s.dtype
    if dtype in (torch.float16, torch.bfloat16):
        s = s.float()
    p = map(s, dim=dim, mask=mask)
    y, counts = _as_distribution(target, s, dim, ignore_index)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    # Both p and y sum to one, so a constant drops out of <s, p - y>, and with it the error of its rounding.
    top = s.detach().amax(dim, keepdim=True)
    linear = _Linear.apply(s, p, y, top.where(top.isfinite(), 0.0)).sum(dim)
    loss: Tensor = linear - omega(p.detach(), dim) + omega(y, dim)
    loss = loss + (-loss).clamp(min=0).detach()  # rounding alone makes it negative
    return reduce_loss(loss.to(dtype), counts, reduction)


def check_reduction(reduction: str) -> None:
    """Check that it is one of `Reduction`."""
    if reduction not in REDUCTIONS:
        expected = "'mean' (or 'elementwise_mean'), 'sum' or 'none'"
        _check.complain("reduction", repr(reduction), expected, "Choose one of these.")


def reduce_loss(loss: Tensor, counts: Tensor | None, reduction: Reduction) -> Tensor:
    """Losses per row, their sum, or the mean over the rows that count; `counts` is True for those, or None."""
    if counts is not None:
        loss = loss.where(counts, 0.0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    total = counts.sum().clamp(min=1) if counts is not None else max(1, loss.numel())
    return loss.sum() / total


def _as_distribution(target: Tensor, s: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """The target as distributions in the shape of s; for class indices also a mask, False where they are ignored."""
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


def negative_tsallis(p: Tensor, dim: int, alpha: float) -> Tensor:
    """Negative Tsallis entropy of rows: the sum of (p^alpha - p) / (alpha (alpha - 1)), of p ln p at alpha = 1.

    As p (e^((alpha - 1) ln p) - 1), because near alpha = 1 the difference of the two powers has no digits left.
    """
    delta = alpha - 1
    positive = p > 0
    log = torch.where(positive, p, 1.0).log()
    term = p * (log if delta == 0 else torch.expm1(delta * log) / (alpha * delta))
    # At zero the slope is that of -p / (alpha delta); up to alpha = 1 it is infinite, and is taken as zero.
    edge = -p / (alpha * delta) if delta > 0 else torch.zeros_like(p)
    return torch.where(positive, term, edge).sum(dim)


def _norm(p: Tensor, dim: int, alpha: float) -> Tensor:
    """The alpha-norm of rows, scaled by their largest entry: high powers of small numbers underflow to zero."""
    top = p.detach().amax(dim, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    total = ((p / top) ** alpha).sum(dim)
    return torch.where(total > 0, total, 1.0) ** (1 / alpha) * top.squeeze(dim) * (total > 0)


class _Linear(Function):
    """<s - top, p - y> term by term, with the derivative p - y in s: by duality that of p does not enter."""

    @staticmethod
    def forward(s: Tensor, p: Tensor, y: Tensor, top: Tensor) -> Tensor:
        # A class that takes no part has score -inf and weight zero, and adds nothing.
        return torch.where(p == y, 0.0, (s - top) * (p - y))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor, None]:
        s, p, y = ctx.saved_tensors
        return grads[0] * (p - y), None, -grads[0] * s, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        batched = (x.movedim(d, 0) if d is not None else x.unsqueeze(0) for x, d in zip(inputs, in_dims, strict=True))
        return _Linear.apply(*batched), 0
