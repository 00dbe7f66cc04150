"""Triton kernels of sparsemax and entmax of rows that registers do not hold: some passes over each of them."""

import triton
import triton.language as tl

from regard.gpu._numbers import BY_EDGE, BY_LOG, IS_ENTMAX15, IS_STEEP, log2_of, newton, parts_of, safe_delta
from regard.gpu._row_kernels import climbed, place_of, scores_at, start_of


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
