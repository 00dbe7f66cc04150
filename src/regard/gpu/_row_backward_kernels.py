"""Triton kernel of the gradient of sparsemax and entmax of rows, in scores and in alphas."""

import triton
import triton.language as tl

from regard.gpu._numbers import IS_ENTMAX15, IS_SPARSEMAX, SMALLEST_WEIGHT, bend_of, log2_of, safe_delta
from regard.gpu._row_kernels import place_of


@triton.jit
def slopes_of(p, least, delta, KIND: tl.constexpr):
    """p^(2 - alpha) on the support, zero elsewhere, in units of that of `least`, which is 1 up to alpha = 2."""
    inside = p > 0.0
    if KIND == IS_SPARSEMAX:
        w = tl.where(inside, 1.0, 0.0)
    elif KIND == IS_ENTMAX15:
        w = tl.sqrt(p)
    else:
        # Weights below the normal numbers of float32 count as the least of these.
        ratio = tl.where(p > SMALLEST_WEIGHT, p, SMALLEST_WEIGHT) / least
        w = tl.where(inside, tl.exp2((1.0 - delta) * log2_of(ratio, ratio - 1.0)), 0.0)
    return w


@triton.jit
def saturated(x):
    """Within the finite numbers."""
    return tl.maximum(tl.minimum(x, 3.4028234e38), -3.4028234e38)


@triton.jit
def entmax_row_backward(
    P, G, A, D, DA, number, n, alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc,
    KIND: tl.constexpr, HAS_ALPHA: tl.constexpr, BLOCK: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """The gradient in the scores of a row, w (g - <w, g> / sum w), and in its alpha (docs/math.md, 2.11 and 2.12).

    With LONG the row is read in two passes, otherwise it stays in registers.
    """
    row = tl.program_id(0)
    begin = row.to(tl.int64) * n
    delta = number
    if HAS_ALPHA:
        alpha = tl.load(A + place_of(row, alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc)).to(tl.float32)
        delta = safe_delta(alpha)
    if not LONG:
        at = tl.arange(0, BLOCK)
        p = tl.load(P + begin + at, mask=at < n, other=0.0).to(tl.float32)
        g = tl.load(G + begin + at, mask=at < n, other=0.0).to(tl.float32)
        least = 1.0
        if HAS_ALPHA:
            smallest = tl.min(tl.where(p > SMALLEST_WEIGHT, p, 1.0), 0)
            least = tl.where(delta > 1.0, smallest, 1.0)
        w = slopes_of(p, least, delta, KIND)
        total = tl.sum(w, 0)
        centre = tl.where(total > 0.0, tl.sum(w * g, 0) / total, 0.0)
        unit = 1.0
        if HAS_ALPHA:
            unit = tl.minimum(tl.exp2((1.0 - delta) * log2_of(least, least - 1.0)), 3.4028234e38)
            bend = bend_of(p, w, p / unit, delta, p > SMALLEST_WEIGHT)
            tl.store(DA + row, saturated(tl.sum(bend * (g - centre), 0) * unit))
        d = w * (g - centre)
        if HAS_ALPHA:
            d = saturated(d * unit)
        tl.store(D + begin + at, d.to(D.dtype.element_ty), mask=at < n)
    else:
        least = 1.0
        if HAS_ALPHA:
            smallest = tl.full([BLOCK], 1.0, tl.float32)
            for start in range(0, n, BLOCK):
                at = start + tl.arange(0, BLOCK)
                p = tl.load(P + begin + at, mask=at < n, other=0.0).to(tl.float32)
                smallest = tl.minimum(smallest, tl.where(p > SMALLEST_WEIGHT, p, 1.0))
            least = tl.where(delta > 1.0, tl.min(smallest, 0), 1.0)
        sums = tl.zeros([BLOCK], tl.float32)
        dots = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            p = tl.load(P + begin + at, mask=at < n, other=0.0).to(tl.float32)
            g = tl.load(G + begin + at, mask=at < n, other=0.0).to(tl.float32)
            w = slopes_of(p, least, delta, KIND)
            sums += w
            dots += w * g
        total = tl.sum(sums, 0)
        centre = tl.where(total > 0.0, tl.sum(dots, 0) / total, 0.0)
        unit = 1.0
        bends = tl.zeros([BLOCK], tl.float32)
        if HAS_ALPHA:
            unit = tl.minimum(tl.exp2((1.0 - delta) * log2_of(least, least - 1.0)), 3.4028234e38)
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            p = tl.load(P + begin + at, mask=at < n, other=0.0).to(tl.float32)
            g = tl.load(G + begin + at, mask=at < n, other=0.0).to(tl.float32)
            w = slopes_of(p, least, delta, KIND)
            d = w * (g - centre)
            if HAS_ALPHA:
                bends += bend_of(p, w, p / unit, delta, p > SMALLEST_WEIGHT) * (g - centre)
                d = saturated(d * unit)
            tl.store(D + begin + at, d.to(D.dtype.element_ty), mask=at < n)
        if HAS_ALPHA:
            tl.store(DA + row, saturated(tl.sum(bends, 0) * unit))
