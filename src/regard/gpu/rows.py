"""The launches of the Triton kernels of sparsemax and entmax of rows: one for each direction.

A kernel reads scores in their own dtype and the mask as it lies, and converts inside. No value is read on the way,
unless values are checked: then one number is, once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.gpu._choose import device_of
from regard.gpu._tune import tuned

IN_REGISTERS = 16384  # entries of a row that one program holds: 16 for each of 1,024 threads
WITH_SLOPES = 8192  # the same for the gradient in alpha, which needs more registers
PASS, PASS_WARPS = 2048, 8  # entries that a program reads at a time from longer rows, its warps; twice as many spill
ROW_LEVELS = 3  # of the leading dimensions, in the kernels' arithmetic

RowLayout = tuple[int, int, int, int, int]


def warps(entries: int) -> int:
    """How many warps share a row: 16 entries for each thread, so that copies of a row stay in registers.

    >>> [warps(n) for n in (16, 512, 1024, 4096, 16384)]
    [1, 1, 2, 8, 32]
    """
    lanes = 64 if torch.version.hip else 32  # a program has at most 1,024 threads
    return min(1024 // lanes, max(1, entries // (16 * lanes)))


def broadcast_rows(x: Tensor, lead: torch.Size) -> tuple[Tensor, RowLayout]:
    """A tensor that broadcasts to (*lead, m) as it lies in memory, and where the entries of each row begin.

    The layout is (b, c, stride of a, of b, of c): row r is at (r // (b c), r // c % b, r % c). A copy is made only
    where axes of one stride are more than three.
    """
    x = x[(None,) * (len(lead) + 1 - x.dim())].expand(*lead, x.shape[-1])
    axes: list[tuple[int, int]] = []  # size and stride, outermost first
    for size, stride in zip(lead, x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == stride * size:
            axes[-1] = axes[-1][0] * size, stride
        else:
            axes.append((size, stride))
    if len(axes) > ROW_LEVELS:
        x = x.contiguous()
        axes = [(math.prod(lead), x.shape[-1])]
    axes = [(1, 0)] * (ROW_LEVELS - len(axes)) + axes
    return x, (axes[1][0], axes[2][0], axes[0][1], axes[1][1], axes[2][1])


def entmax_forward(s: Tensor, mask: Tensor | None, alphas: Tensor | None, number: float) -> Tensor:
    """The weights of rows along the last axis of `s`, in its dtype.

    `mask`: boolean, broadcasts to `s`, or None.
    `alphas`: broadcasts to `s` with size 1 on the last axis, or None; `number` is the alpha then.
    """
    from regard.gpu import _long_row_kernels, _row_kernels

    rows = s.contiguous()
    p, n = torch.empty_like(rows), rows.shape[-1]
    if rows.numel() == 0:
        return p
    lead = rows.shape[:-1]
    flag = None
    if _check.values_checked(s):
        flag = torch.zeros(1, dtype=torch.int32, device=s.device)
    mask_rows, mask_layout = (rows, (1,) * 5) if mask is None else broadcast_rows(mask, lead)
    alpha_rows, alpha_layout = (rows, (1,) * 5) if alphas is None else broadcast_rows(alphas, lead)
    long = n > IN_REGISTERS
    block = PASS if long else max(16, 1 << (n - 1).bit_length())
    kernel = _long_row_kernels.entmax_long_row if long else _row_kernels.entmax_row
    launch = tuned(kernel)[(rows.numel() // n,)]
    with device_of(s):
        launch(
            rows,
            mask_rows if mask is None else mask_rows.view(torch.uint8),
            alpha_rows,
            p,
            p if flag is None else flag,
            number - 1,
            n,
            *mask_layout,
            0 if mask is None or mask.shape[-1] == 1 else mask_rows.stride(-1),
            *alpha_layout,
            KIND=kind_of(number),
            HAS_MASK=mask is not None,
            HAS_ALPHA=alphas is not None,
            HAS_FLAG=flag is not None,
            BLOCK=block,
            num_warps=PASS_WARPS if long else warps(block),
        )
    if flag is not None:
        _refuse(int(flag), s, mask, alphas)
    return p


def entmax_backward(p: Tensor, grad: Tensor, alphas: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
    """The gradient in the scores, and in the alpha of each row (empty if it is a number)."""
    from regard.gpu import _row_backward_kernels

    p, grad = p.contiguous(), grad.contiguous()
    d, n, lead = torch.empty_like(p), p.shape[-1], p.shape[:-1]
    slopes = torch.empty(lead if alphas is not None else (0,), dtype=torch.float32, device=p.device)
    if p.numel() == 0:
        return d, slopes
    alpha_rows, alpha_layout = (p, (1,) * 5) if alphas is None else broadcast_rows(alphas, lead)
    long = n > (IN_REGISTERS if alphas is None else WITH_SLOPES)
    block = PASS if long else max(16, 1 << (n - 1).bit_length())
    launch = tuned(_row_backward_kernels.entmax_row_backward)[(p.numel() // n,)]
    with device_of(p):
        launch(
            p,
            grad,
            alpha_rows,
            d,
            slopes,
            number - 1,
            n,
            *alpha_layout,
            KIND=kind_of(number),
            HAS_ALPHA=alphas is not None,
            BLOCK=block,
            LONG=long,
            num_warps=PASS_WARPS if long else warps(block),
        )
    return d, slopes


def kind_of(alpha: float) -> int:
    """The formula of a number alpha, as `_numbers` names them; with alphas in a tensor each row finds its own.

    >>> [kind_of(alpha) for alpha in (2.0, 1.5, 1.3, 1.1, 0.5, 3.0)]
    [2, 1, 0, 3, 3, 4]
    """
    return {2.0: 2, 1.5: 1}.get(alpha, 4 if alpha > 2 else 0 if alpha > 1.25 else 3)


def has_kernel(alpha: float | Tensor) -> bool:
    """Whether the kernels have this alpha: every tensor of them, whose values are not read, and numbers up to 2.

    A number above two goes to the solver in float64, which is more precise.
    """
    return isinstance(alpha, Tensor) or alpha <= 2


def _refuse(flag: int, s: Tensor, mask: Tensor | None, alphas: Tensor | None) -> None:
    """The error of a bad score or a bad alpha, which the kernel has seen."""
    if flag == 2 and alphas is not None:
        got = f"a tensor with values from {float(alphas.min())} to {float(alphas.max())}"
        remedy = "Learn it as alpha = 1 + softplus(a), sparse, or softplus(a), which may become dense."
        _check.complain("alpha", got, "finite values > 0", remedy)
    if flag == 1:
        _check.scores(s if mask is None else s.masked_fill(~mask, -math.inf))
