"""Triton kernels of sparsemax and entmax of rows: one program for a row, which it reads once if registers hold it.

Arguments of all kernels: addresses, `n` entries in a row, and how the rows of a mask and of alphas lie: row r has its
place at (r // (b c)) * stride_a + (r // c % b) * stride_b + (r % c) * stride_c.
"""

import triton
import triton.language as tl

from regard.gpu._numbers import (
    BY_EDGE,
    BY_LOG,
    IS_ENTMAX15,
    IS_SPARSEMAX,
    IS_STEEP,
    SMALLEST_WEIGHT,
    bend_of,
    log2_of,
    newton,
    parts_of,
    safe_delta,
)


@triton.jit
def place_of(row, b, c, stride_a, stride_b, stride_c):
    """Where the entries of a row begin in a tensor that is broadcast to all rows."""
    # Divisions of 32 bits: those of 64 are calls, around which registers spill.
    outer, middle, inner = row // (b * c), (row // c) % b, row % c
    return outer.to(tl.int64) * stride_a + middle.to(tl.int64) * stride_b + inner.to(tl.int64) * stride_c


@triton.jit
def scores_at(S, M, at, mask_at, mask_step, n, HAS_MASK: tl.constexpr):
    """Scores in float32, -inf where they are masked or past the end."""
    inside = at < n
    x = tl.load(S + at, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_MASK:
        seen = tl.load(M + mask_at + at.to(tl.int64) * mask_step, mask=inside, other=0)
        x = tl.where(seen != 0, x, -float("inf"))
    return x


@triton.jit
def start_of(count, mean, delta, KIND: tl.constexpr):
    """A lower bound of the threshold by Jensen's inequality, from the number and the mean of entries of the row."""
    if KIND == BY_LOG:
        low = mean * 0.0
    elif KIND == IS_SPARSEMAX:
        low = tl.maximum(mean - 1.0 / count, -1.0)
    elif KIND == IS_ENTMAX15:
        low = tl.maximum(mean - 1.0 / tl.sqrt(count), -1.0)
    else:
        low = tl.maximum(mean - tl.exp2(-delta * log2_of(count, count - 1.0)) / delta, -1.0 / delta)
    return low


@triton.jit
def climbed(z, low, delta, KIND: tl.constexpr):
    """The threshold of entries in registers by Newton's method from a lower bound, and the step that is left."""
    inverse = 1.0 / delta
    step = low * 0.0
    count = 0
    moving = True
    while moving:
        p, slope = parts_of(z - low, delta, inverse, KIND)
        total = tl.sum(p, 0)
        step = newton(total, tl.sum(slope, 0), delta, KIND)
        count += 1
        # Not for a row that is solved, whose step is below the spacing of numbers, or that has NaN.
        moving = (tl.abs(total - 1.0) > 4e-7) & (step > 0.0) & (low + step != low) & (count < 60)
        low = tl.where(moving, low + step, low)
    return low, step


@triton.jit
def halved(z, count, delta):
    """The same for alpha above 2 by halving intervals: of the logarithm of the threshold, which is negative, then of
    the part that is below the spacing of numbers there."""
    inverse = 1.0 / delta
    end = 0.0 * delta
    begin = tl.maximum(-delta * log2_of(count, count - 1.0), -118.0)
    for _step in range(40):
        middle = 0.5 * (begin + end)
        p, _ = parts_of(z + tl.exp2(middle) * inverse, delta, inverse, IS_STEEP)
        above = tl.sum(p, 0) > 1.0
        end = tl.where(above, middle, end)
        begin = tl.where(above, begin, middle)
    low = -tl.exp2(end) * inverse
    right = -low * 4.8e-7
    left = -right
    for _step in range(24):
        middle = 0.5 * (left + right)
        p, _ = parts_of((z - low) - middle, delta, inverse, IS_STEEP)
        above = tl.sum(p, 0) > 1.0
        left = tl.where(above, middle, left)
        right = tl.where(above, right, middle)
    return low, 0.5 * (left + right)


@triton.jit
def row_in_registers(x, P, at, n, top, delta, KIND: tl.constexpr):
    """Write the weights of a row whose scores are in registers; `top` is their maximum."""
    bad = (top != top) | (top == float("inf"))
    dead = top == -float("inf")
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    z = (x - tl.where(dead, 0.0, top)) * unit
    seen = x > -float("inf")
    count = tl.maximum(tl.sum(seen.to(tl.float32), 0), 1.0)
    if KIND == IS_STEEP:
        low, step = halved(z, count, delta)
    else:
        mean = tl.sum(tl.where(seen, z, 0.0), 0) / count
        low, step = climbed(z, start_of(count, mean, delta, KIND), delta, KIND)
    # The last step is below the spacing of numbers near `low`, but not of those near z - low.
    p, _ = parts_of((z - low) - step, delta, 1.0 / delta, KIND)
    p = p / tl.sum(p, 0)
    p = tl.where(dead, 0.0, tl.where(bad, float("nan"), p))
    tl.store(P + at, p.to(P.dtype.element_ty), mask=at < n)


@triton.jit
def entmax_row(
    S, M, A, P, FLAG, number, n, mask_b, mask_c, mask_sa, mask_sb, mask_sc, mask_step,
    alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_FLAG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of scores to weights, whole in registers. FLAG becomes 1 for NaN and +inf, 2 for a bad alpha."""
    row = tl.program_id(0)
    mask_at = place_of(row, mask_b, mask_c, mask_sa, mask_sb, mask_sc) if HAS_MASK else 0
    at = tl.arange(0, BLOCK)
    x = scores_at(S + row.to(tl.int64) * n, M, at, mask_at, mask_step, n, HAS_MASK)
    P += row.to(tl.int64) * n
    # A maximum of a device leaves NaN out.
    top = tl.where(tl.sum((x != x).to(tl.int32), 0) > 0, float("nan"), tl.max(x, 0))
    if HAS_FLAG and ((top != top) | (top == float("inf"))):
        tl.store(FLAG, 1)
    if not HAS_ALPHA:
        row_in_registers(x, P, at, n, top, number, KIND)
    else:
        alpha = tl.load(A + place_of(row, alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc)).to(tl.float32)
        fine = (alpha > 0.0) & (alpha < float("inf"))
        if HAS_FLAG and (fine == 0):
            tl.store(FLAG, 2)
        top = tl.where(fine, top, float("nan"))
        delta = safe_delta(tl.where(fine, alpha, 1.5))
        if delta > 1.0:
            row_in_registers(x, P, at, n, top, delta, IS_STEEP)
        elif delta > 0.25:
            row_in_registers(x, P, at, n, top, delta, BY_EDGE)
        else:
            row_in_registers(x, P, at, n, top, delta, BY_LOG)


@triton.jit
def sums_at(
    S, M, mask_at, mask_step, n, top, unit, low, step, delta,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of weights and of slopes of a row that registers do not hold, in one pass over it."""
    total = tl.zeros([BLOCK], tl.float32)
    slopes = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = scores_at(S, M, at, mask_at, mask_step, n, HAS_MASK)
        p, slope = parts_of(((x - top) * unit - low) - step, delta, 1.0 / delta, KIND)
        total += p
        slopes += slope
    return tl.sum(total, 0), tl.sum(slopes, 0)


@triton.jit
def row_in_passes(
    S, M, P, heads, mask_at, mask_step, n, top, delta,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the weights of a longer row. The threshold of `heads`, maxima of strided groups, is a lower bound of that
    of the row: some two passes over the row are left."""
    bad = (top != top) | (top == float("inf"))
    dead = top == -float("inf")
    base = tl.where(dead, 0.0, top)
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    step = 0.0 * delta
    if KIND == IS_STEEP:
        end = 0.0 * delta
        begin = tl.maximum(-delta * log2_of(n * 1.0, n * 1.0 - 1.0), -118.0)
        for _step in range(40):
            middle = 0.5 * (begin + end)
            edge = -tl.exp2(middle) / delta
            total, slopes = sums_at(S, M, mask_at, mask_step, n, base, unit, edge, 0.0, delta, KIND, HAS_MASK, BLOCK)
            end = tl.where(total > 1.0, middle, end)
            begin = tl.where(total > 1.0, begin, middle)
        low = -tl.exp2(end) / delta
        right = -low * 4.8e-7
        left = -right
        for _step in range(24):
            step = 0.5 * (left + right)
            total, slopes = sums_at(S, M, mask_at, mask_step, n, base, unit, low, step, delta, KIND, HAS_MASK, BLOCK)
            left = tl.where(total > 1.0, step, left)
            right = tl.where(total > 1.0, right, step)
    else:
        z = (heads - base) * unit
        seen = heads > -float("inf")
        count = tl.maximum(tl.sum(seen.to(tl.float32), 0), 1.0)
        mean = tl.sum(tl.where(seen, z, 0.0), 0) / count
        low, step = climbed(z, start_of(count, mean, delta, KIND), delta, KIND)
        step = 0.0 * delta
        passes = 0
        moving = True
        while moving:
            total, slopes = sums_at(S, M, mask_at, mask_step, n, base, unit, low, 0.0, delta, KIND, HAS_MASK, BLOCK)
            step = newton(total, slopes, delta, KIND)
            passes += 1
            moving = (tl.abs(total - 1.0) > 1e-6) & (step > 0.0) & (low + step != low) & (passes < 60)
            low = tl.where(moving, low + step, low)
    total, slopes = sums_at(S, M, mask_at, mask_step, n, base, unit, low, step, delta, KIND, HAS_MASK, BLOCK)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = scores_at(S, M, at, mask_at, mask_step, n, HAS_MASK)
        p, _ = parts_of(((x - base) * unit - low) - step, delta, 1.0 / delta, KIND)
        p = tl.where(dead, 0.0, tl.where(bad, float("nan"), p / total))
        tl.store(P + at, p.to(P.dtype.element_ty), mask=at < n)


@triton.jit
def entmax_long_row(
    S, M, A, P, FLAG, number, n, mask_b, mask_c, mask_sa, mask_sb, mask_sc, mask_step,
    alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_FLAG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `entmax_row`, for rows that registers do not hold."""
    row = tl.program_id(0)
    mask_at = place_of(row, mask_b, mask_c, mask_sa, mask_sb, mask_sc) if HAS_MASK else 0
    S += row.to(tl.int64) * n
    P += row.to(tl.int64) * n
    heads = tl.full([BLOCK], -float("inf"), tl.float32)
    unknown = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        x = scores_at(S, M, start + tl.arange(0, BLOCK), mask_at, mask_step, n, HAS_MASK)
        unknown += (x != x).to(tl.int32)
        heads = tl.maximum(heads, x)
    top = tl.where(tl.sum(unknown, 0) > 0, float("nan"), tl.max(heads, 0))
    if HAS_FLAG and ((top != top) | (top == float("inf"))):
        tl.store(FLAG, 1)
    if not HAS_ALPHA:
        row_in_passes(S, M, P, heads, mask_at, mask_step, n, top, number, KIND, HAS_MASK, BLOCK)
    else:
        alpha = tl.load(A + place_of(row, alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc)).to(tl.float32)
        fine = (alpha > 0.0) & (alpha < float("inf"))
        if HAS_FLAG and (fine == 0):
            tl.store(FLAG, 2)
        top = tl.where(fine, top, float("nan"))
        delta = safe_delta(tl.where(fine, alpha, 1.5))
        if delta > 1.0:
            row_in_passes(S, M, P, heads, mask_at, mask_step, n, top, delta, IS_STEEP, HAS_MASK, BLOCK)
        elif delta > 0.25:
            row_in_passes(S, M, P, heads, mask_at, mask_step, n, top, delta, BY_EDGE, HAS_MASK, BLOCK)
        else:
            row_in_passes(S, M, P, heads, mask_at, mask_step, n, top, delta, BY_LOG, HAS_MASK, BLOCK)


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
