"""The native kernel of sparsemax and entmax, and of its gradient in the scores."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from regard import _check, native


def suits(alpha: float | Tensor) -> bool:
    """Whether the kernels support alpha: 1.01 to 2; nearer to softmax the plain solver is more precise."""
    if not isinstance(alpha, Tensor):
        return 1.01 <= alpha <= 2
    return alpha.device.type == "cpu" and alpha.numel() > 0 and bool(((alpha >= 1.01) & (alpha <= 2)).all())


def entmax_by_kernel(s: Tensor, alpha: float | Tensor, dim: int) -> Tensor:
    """`entmax_rows` by the native kernel."""
    # A call of torch takes a few microseconds, which matters for short rows: as few as possible.
    last = dim in (-1, s.dim() - 1)
    rows = (s if last else s.movedim(dim, -1)).contiguous()
    p, n = torch.empty_like(rows), rows.shape[-1]
    alphas = _alpha_per_row(alpha, rows.shape, dim)
    if native.call(f"regard_entmax_{native.suffix(s)}", rows, p, rows.numel() // n, n, alphas, len(alphas)):
        _check.scores(rows)
    return p if last else p.movedim(-1, dim).contiguous()


def pullback_by_kernel(p: Tensor, grad: Tensor, alpha: float, dim: int) -> Tensor | None:
    """The gradient in the scores by the native kernel, or None where it does not apply; arguments as in `pullback`."""
    if dim not in (-1, p.dim() - 1) or not native.usable(p, grad) or not suits(alpha) or not p.is_contiguous():
        return None
    out, rows = torch.empty_like(p), p.numel() // max(1, p.shape[-1])
    name = f"regard_entmax_backward_{native.suffix(p)}"
    native.call(name, p, grad.contiguous(), out, rows, p.shape[-1], _single_alpha(alpha), 1)
    return out


def _alpha_per_row(alpha: float | Tensor, shape: torch.Size, dim: int) -> Tensor:
    """Alpha in float64: one number, or one per row."""
    if not isinstance(alpha, Tensor):
        return _single_alpha(alpha)
    if alpha.numel() == 1:
        return alpha.detach().reshape(1).double()
    return alpha.detach().movedim(dim, -1).expand(*shape[:-1], 1).reshape(-1).double().contiguous()


@functools.lru_cache(maxsize=16)
def _single_alpha(alpha: float) -> Tensor:
    return torch.tensor([alpha], dtype=torch.float64)
