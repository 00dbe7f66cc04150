"""The functions: softmax, sparsemax and entmax, argmax over distributions p of <s, p> - Omega(p)."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import _check, gpu
from regard._torch import exporting
from regard.maps._rows import one_per_row, scores_in_float32
from regard.maps.entmax.derivative import differentiable_entmax
from regard.maps.entmax.export import entmax_exported
from regard.maps.entmax.operator import entmax_operator
from regard.maps.entmax.triton import entmax_by_triton


def softmax(s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Distribution that maximises <s, p> plus its Shannon entropy (docs/math.md, 2.2).

    `s`: scores of any shape.
    `dim`: the axis along which weights sum to one; default -1.
    `mask`: boolean, True where an entry takes part; broadcasts to `s`; default None.

    Returns weights in the shape and dtype of `s`. Differentiable any number of times.

    An entry with score -inf counts as masked. A slice with every entry masked is zero, and so is its gradient. NaN and
    +inf raise ValueError (see `checks`).

    >>> softmax(torch.tensor([1.0, 1.0, 3.0]), mask=torch.tensor([True, True, False]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    s, dim, dtype = scores_in_float32(s, dim, mask)
    _check.scores(s)
    if _check.values_checked(s) and not bool(s.detach().narrow(dim, 0, 1).isneginf().any()):
        return torch.softmax(s, dim).to(dtype)  # no row is masked entirely if none is at its first entry
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

    `s`, `dim`, `mask`: as in `softmax`; so are shapes and errors.
    `alpha`: a number > 0 (1 is softmax, 2 is sparsemax), or a tensor that broadcasts against `s` with size 1 along
    `dim`, one per slice, which can be learned; default 1.5.

    Above alpha = 1 weights are sparse; below they are dense, with tails longer than softmax's, near
    s^(-1 / (1 - alpha)); at zero and below there is no entropy (2.4). The gradients in `s` (2.11) and in `alpha` (2.12)
    are closed form, exact at and around alpha = 1, and differentiable again.

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
    if not exporting() and (p := _by_triton(s, alpha, dim, mask)) is not None:
        return p
    s, dim, dtype = scores_in_float32(s, dim, mask)
    if isinstance(alpha, Tensor):
        alpha = one_per_row("alpha", alpha, s, dim)
    if exporting() and (torch.onnx.is_in_onnx_export() or (isinstance(alpha, float) and alpha <= 2)):
        # A graph of torch's operations runs without regard; ONNX supports no others.
        p = entmax_exported(s, alpha, dim)
    elif torch.compiler.is_compiling():
        alphas, number = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
        p = entmax_operator(s.contiguous(), alphas, number, dim)
    else:
        p = differentiable_entmax(s, alpha, dim)
    return p.to(dtype)


def _by_triton(s: Tensor, alpha: float | Tensor, dim: int, mask: Tensor | None) -> Tensor | None:
    """The weights by kernels for GPUs, which convert and mask on the way, or None."""
    if not isinstance(s, Tensor) or not gpu.usable(s):
        return None
    _check.floating("s", s, min_dims=1)
    dim = _check.axis("s", s, dim)
    if mask is not None:
        _check.boolean_mask(mask, s.shape)
    alpha = one_per_row("alpha", alpha, s, dim, in_dtype=False) if isinstance(alpha, Tensor) else alpha
    return entmax_by_triton(s, alpha, dim, mask)
