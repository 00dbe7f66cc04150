"""What all distances share: roots with a finite gradient at zero, checks, and broadcasting to pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import _check


def root(x: Tensor, p: float) -> Tensor:
    """x^(1/p) for x >= 0, with gradient zero at zero; values below zero, from rounding, count as zero."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1) ** (1 / p), 0)


def power_mean(x: Tensor, weights: Tensor, p: float) -> Tensor:
    """(sum of weights |x|^p)^(1/p) over the last axis, without overflow, and with gradient zero at zero."""
    scale = x.detach().abs().amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1)
    size = x / scale * x.detach().sign()  # not abs: torch does not specify its derivative at zero
    return root((size**p * weights).sum(-1), p) * scale.squeeze(-1)


def norm_between(x: Tensor, y: Tensor, p: float, pairwise: bool) -> Tensor:
    """p-norm of x - y over the last axis: (...), or for x (..., Lq, n) and y (..., Lk, n) all pairs (..., Lq, Lk)."""
    if pairwise:
        # Differences, not the expansion of the square: it loses digits where points are close.
        return torch.cdist(x, y, p, compute_mode="donot_use_mm_for_euclid_dist")
    return power_mean(x - y, torch.ones_like(x[..., :1]), p)


def as_pairs(x: Tensor, y: Tensor, pairwise: bool, axes: int) -> tuple[Tensor, Tensor]:
    """x and y with an axis for the other inserted before their last `axes` axes, so that pairs broadcast."""
    return (x.unsqueeze(-axes - 1), y.unsqueeze(-axes - 2)) if pairwise else (x, y)


def computed(**tensors: Tensor) -> tuple[list[Tensor], torch.dtype]:
    """The tensors, which must be finite, in one common dtype, float32 or wider; and the dtype of the result."""
    dtype = None
    for name, x in tensors.items():
        _check.floating(name, x, min_dims=1)
        _check.finite(name, x)
        dtype = x.dtype if dtype is None else torch.promote_types(dtype, x.dtype)
    assert dtype is not None
    return [x.to(torch.promote_types(dtype, torch.float32)) for x in tensors.values()], dtype


def same_last(name: str, x: Tensor, other: str, y: Tensor, axes: int = 1) -> None:
    """Check that the last `axes` sizes of two tensors agree."""
    if x.shape[-axes:] != y.shape[-axes:]:
        _check.complain(
            other, f"shape {tuple(y.shape)}", f"last sizes {tuple(x.shape[-axes:])} as {name} has", "Match them."
        )


def lined_up(name: str, x: Tensor, other: str, y: Tensor, pairwise: bool, axes: int) -> None:
    """Check that leading axes broadcast, and that with `pairwise` there is an axis of queries and one of keys.

    `axes` is the number of axes of one distribution.
    """
    least = axes + pairwise
    for argument, z in ((name, x), (other, y)):
        if z.dim() < least or 0 in z.shape[z.dim() - axes :]:
            expected = f"at least {least} axes, the last {axes} not empty" + (" (pairwise)" if pairwise else "")
            _check.complain(argument, f"shape {tuple(z.shape)}", expected, "Add an axis with unsqueeze.")
    leading = x.shape[: x.dim() - least], y.shape[: y.dim() - least]
    try:
        torch.broadcast_shapes(*leading)
    except RuntimeError:
        _check.complain(
            other, f"shape {tuple(y.shape)}", f"leading axes that broadcast with {tuple(x.shape)}", "Match them."
        )


def mass(argument: str, weights: Tensor) -> None:
    """Check that weights are non-negative and sum to one."""
    _check.finite(argument, weights)
    if _check.values_checked(weights):
        if bool((weights < 0).any()):
            _check.complain(argument, "a negative entry", "masses >= 0", "Take a softmax, or clamp.")
        total = weights.detach().sum(-1)
        if bool(((total - 1).abs() > 1e-3).any()):
            worst = float(total.flatten()[(total - 1).abs().argmax()])
            _check.complain(argument, f"a sum of {worst:.6g}", "masses that sum to 1", "Divide by their sum.")
