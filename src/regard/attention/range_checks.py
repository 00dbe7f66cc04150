"""Checks of the inputs of a fused kernel: finite, and with scores in the range of their dtype.

The result of a fused kernel for NaN or infinity is not specified, and differs between processors, lengths and releases
of torch: some return a finite, wrong context. So the inputs are checked, in one pass over each, and their largest
entries give a bound on the scores.
"""

from __future__ import annotations

import functools
import math
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import _check, native
from regard.affinity import Affinity, Dot, Factored, same_width

SCORES_FORMED = 1 << 21  # numbers in a block of scores, where they have to be formed for the check


class FusedInputs(NamedTuple):
    """Scores are `scale` times the inner products of `q` and `k`, plus `bias`. `sums_fit`: `v` can be summed."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    sums_fit: bool
    bias: Tensor | None


def fused_inputs(q: Tensor, k: Tensor, v: Tensor, affinity: Factored, bias: Tensor | None = None) -> FusedInputs:
    """The inputs of a fused kernel, or an error that names the argument that is not finite.

    Scores that could leave the range of float16 are computed from float32.

    `q`, `k`, `v`: as in `attend`.
    `affinity`: gives the factors of the scores.
    `bias`: with at least two axes; default None.
    """
    tops = largest("q", q), largest("k", k)
    sums_fit = _sums_fit(v)
    if isinstance(affinity, Dot):
        # The kernel scales in float32; scaling half-precision queries first would round them once more.
        same_width(q, k)
        scale = q.shape[-1] ** -0.5 if affinity.scale is None else affinity.scale
        # A causal kernel scales scores of -inf too: with a scale of zero or less they would become NaN or +inf.
        first, second = (q if scale > 0 else -q if scale < 0 else q * 0.0), k
        scale = abs(scale) or 1.0
    else:
        finite_parameters(affinity)
        (first, second), scale = affinity.factors(q, k), 1.0
        tops = _largest_or_overflow(first), tops[1] if second is k else _largest_or_overflow(second)
    added = 0.0 if bias is None else _check.below_infinity("bias", bias)
    if not _fits(*tops, q.shape[-1], scale, q.dtype, added):
        if q.dtype == torch.float16:
            first, second, v = first.float(), second.float(), v.float()
            bias = None if bias is None else bias.float()
        if not _fits(*tops, q.shape[-1], scale, first.dtype, added):
            _check_scores(first, second, scale, bias)
    return FusedInputs(first, second, v, scale, sums_fit, bias)


def finite_context(c: Tensor, v: Tensor) -> Tensor:
    """The context `c`, or an error if scores or sums of the values `v` have overflowed."""
    if _check.values_checked(c) and not bool(c.detach().isfinite().all()):
        if _sums_fit(v):
            _overflow(c.dtype)
        got = f"values so large that their sums overflow {c.dtype}"
        _check.complain("v", got, "finite sums", "Scale the values down.")
    return c


def largest(argument: str, x: Tensor) -> float:
    """The largest absolute entry of `x`; NaN and infinity are errors. Zero if values are not checked."""
    if not _check.values_checked(x) or x.numel() == 0:
        return 0.0
    top = _largest(x)
    if top == math.inf:
        _check.finite(argument, x)
    return top


def finite_parameters(thing: Any, argument: str = "affinity") -> None:
    """Check that the tensors of an affinity are finite, also those of one inside it. `argument` is its name."""
    if torch.compiler.is_compiling() or not is_dataclass(thing):
        return
    for field in fields(thing):
        x = getattr(thing, field.name)
        if isinstance(x, Tensor) and x.is_floating_point():
            largest(f"{argument}.{field.name}", x)
        elif isinstance(x, Affinity):
            finite_parameters(x, f"{argument}.{field.name}")


def _largest(x: Tensor) -> float:
    top = native.largest(x)
    if top is None:
        low, high = (float(end) for end in x.detach().aminmax())  # documented to propagate NaN
        top = max(-low, high) if math.isfinite(low) and math.isfinite(high) else math.inf
    return top


def _largest_or_overflow(factor: Tensor) -> float:
    """The largest absolute entry of a factor of finite inputs; an error if it has overflowed."""
    if not _check.values_checked(factor) or factor.numel() == 0:
        return 0.0
    top = _largest(factor)
    if top == math.inf:
        _overflow(factor.dtype)
    return top


def _sums_fit(v: Tensor) -> bool:
    return largest("v", v) * v.shape[-2] < _quarter(v.dtype)


@functools.cache
def _quarter(dtype: torch.dtype) -> float:
    """A quarter of the largest number, which leaves room for rounding."""
    return torch.finfo(dtype).max / 4


def _fits(q: float, k: float, width: int, scale: float, dtype: torch.dtype, added: float = 0.0) -> bool:
    """Whether scores stay in the range of `dtype`, in any order of summation, also with a bias added.

    `q`, `k`: bounds on the absolute entries of queries and keys.
    `width`: number of terms in an inner product.
    `scale`: factor of the inner products.
    `dtype`: of the scores.
    `added`: bound on the bias; a large one is fine if the scores are below its rounding; default 0.
    """
    bound = q * k * width * max(1.0, abs(scale))
    return bound < _quarter(dtype) and (added < _quarter(dtype) or bound < _quarter(dtype) * torch.finfo(dtype).eps)


def _check_scores(q: Tensor, k: Tensor, scale: float, bias: Tensor | None) -> None:
    """Form the scores, some queries at a time: an error if one overflows its dtype. Arguments as in `FusedInputs`."""
    with torch.no_grad():
        pairs = math.prod(torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])) * k.shape[-2]
        size = max(1, SCORES_FORMED // pairs)
        for start in range(0, q.shape[-2], size):
            at = slice(start, start + size)
            s = (q[..., at, :].detach() * scale) @ k.detach().mT
            if bias is not None:
                rows = bias[..., at, :] if bias.shape[-2] > 1 else bias
                s = torch.where(rows > -math.inf, s + rows, s)
            if not bool(s.isfinite().all()):
                _overflow(q.dtype)


def _overflow(dtype: torch.dtype) -> None:
    remedy = "Scale queries or keys down, or use Dot(scale)."
    _check.complain("q, k", f"scores that overflow {dtype}", "finite scores", remedy)
